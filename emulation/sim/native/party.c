#include "emulation/sim/native/party.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "emulation/sim/native/sim.h"
#include "transport/native/hosts/reliable.h"

#define PATIENCE 10
#define LOOKS 8
#define MESSAGE_COST_BYTES 256u
#define NOBODY UINT32_MAX

void sim_party_begin(struct sim_party *party, uint32_t member, int64_t call_timeout_ns, struct sim_failed *failed) {
    *party = (struct sim_party){.member = member, .call_timeout_ns = call_timeout_ns, .deadline_ns = -1,
                                .failed = failed};
    party->ready_end = &party->ready;
    party->early_end = &party->early;
}

void sim_party_end(struct sim_party *party) {
    for (struct sim_call *call = party->calls, *next; call; call = next) {
        next = call->next;
        sa_execution_free(call->execution);
        free(call);
    }
    for (struct sim_held *held = party->early, *next; held; held = next) {
        next = held->next;
        free(held);
    }
    free(party->finished);
}

static int fail(struct sim_party *party, enum sim_failure failure, uint32_t peer, const uint8_t *local_call,
                const uint8_t *remote_call) {
    struct sim_failed *failed = party->failed;
    failed->failure = failure;
    failed->member = party->member;
    failed->peer = peer;
    if (local_call) memcpy(failed->local_call, local_call, SIM_CALL_BYTES);
    if (remote_call) memcpy(failed->remote_call, remote_call, SIM_CALL_BYTES);
    return -ECANCELED;
}

/* ---- messages to send */

static uint8_t *put_word(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24), at[1] = (uint8_t)(value >> 16), at[2] = (uint8_t)(value >> 8), at[3] = (uint8_t)value;
    return at + 4;
}

static uint32_t word(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

void sim_party_head(const struct sim_call *call, uint32_t node, uint8_t *head) {
    const struct sa_label *label = &call->execution->program->labels[node];
    memcpy(head, call->head, SIM_CALL_BYTES);
    put_word(put_word(put_word(head + SIM_CALL_BYTES, (uint32_t)call->priority), label->step), label->segment);
}

int64_t sim_party_next(struct sim_party *party, struct sim_call **from) {
    struct sim_call *call;
    while ((call = party->ready)) {
        int64_t node = sa_execution_next(call->execution);
        *from = call;
        if (node >= 0) return node;
        call->is_ready = 0;
        if (!(party->ready = call->next_ready)) party->ready_end = &party->ready;
    }
    return -1;
}

/* ---- calls */

static int end_call(struct sim_party *party, struct sim_call *call) {
    if (party->finished_count == party->finished_room) {
        uint32_t room = party->finished_room ? 2 * party->finished_room : 8;
        uint32_t *finished = realloc(party->finished, room * sizeof *finished);
        if (!finished) return -ENOMEM;
        party->finished = finished;
        party->finished_room = room;
    }
    party->finished[party->finished_count++] = call->number;
    struct sim_call **at = &party->calls;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (call->is_ready) {
        for (at = &party->ready; *at != call; at = &(*at)->next_ready) continue;
        if (!(*at = call->next_ready)) party->ready_end = at;
    }
    sa_execution_free(call->execution);
    free(call);
    return 0;
}

/* Note that it may have messages, or is done. */
static int advance(struct sim_party *party, struct sim_call *call) {
    if (!sa_execution_left(call->execution)) return end_call(party, call);
    if (call->is_ready) return 0;
    call->is_ready = 1;
    call->next_ready = NULL;
    *party->ready_end = call;
    party->ready_end = &call->next_ready;
    return 0;
}

static int take(struct sim_party *party, struct sim_call *call, uint32_t sender, const uint8_t *head,
                const uint8_t *data, uint64_t size_bytes, int64_t now_ns) {
    struct sa_label from = {sender, word(head + SIM_CALL_BYTES + 4), word(head + SIM_CALL_BYTES + 8)};
    struct sa_execution *execution = call->execution;
    int result;
    call->moved_ns = now_ns;
    call->moves++;
    call->arrived++;
    if (execution->array) {
        result = sa_execution_receive(execution, &from, data, size_bytes);
    } else {
        int64_t node = sa_execution_find(execution, &from);
        bool is_fit = node >= 0 && sa_execution_awaits(execution, (uint32_t)node);
        result = is_fit ? sa_execution_take(execution, (uint32_t)node, sender, NULL) : SA_UNFIT_UNEXPECTED;
    }
    if (result > 0) return fail(party, SIM_WRONG_MESSAGE, sender, call->head, head);
    return result ? result : advance(party, call);
}

static struct sim_call *find(const struct sim_party *party, const uint8_t *head) {
    struct sim_call *call = party->calls;
    while (call && memcmp(call->head + SIM_KEY_AT, head + SIM_KEY_AT, SIM_KEY_BYTES)) call = call->next;
    return call;
}

static int hold(struct sim_party *party, uint32_t sender, const uint8_t *head, const uint8_t *data,
                uint64_t size_bytes) {
    party->early_bytes += size_bytes + MESSAGE_COST_BYTES;
    if (party->early_bytes > SIM_EARLY_BYTES_MAX) return fail(party, SIM_TOO_EARLY, sender, NULL, head);
    struct sim_held *held = malloc(sizeof *held + (data ? size_bytes : 0));
    if (!held) return -ENOMEM;
    held->next = NULL;
    held->sender = sender;
    held->size_bytes = size_bytes;
    held->has_values = data != NULL;
    memcpy(held->head, head, SIM_HEAD_BYTES);
    if (data) memcpy(held->data, data, size_bytes);
    *party->early_end = held;
    party->early_end = &held->next;
    return 0;
}

int sim_party_receive(struct sim_party *party, uint32_t sender, const uint8_t *head, const uint8_t *data,
                      uint64_t size_bytes, int64_t now_ns) {
    if (party->failed->failure) return -ECANCELED;
    party->moved_ns = now_ns;
    struct sim_call *call = find(party, head);
    bool expects = call && sa_execution_expects(call->execution, sender);
    if (call && !memcmp(call->head, head, SIM_CALL_BYTES))
        return expects ? take(party, call, sender, head, data, size_bytes, now_ns)
                       : hold(party, sender, head, data, size_bytes); /* of the next call under this key */
    if (call && (head[SIM_NUMBERED_AT] || expects)) return fail(party, SIM_CALLS_DIFFER, sender, call->head, head);
    return hold(party, sender, head, data, size_bytes);
}

/* Give a new call the messages that came before it; those of the next call under its key stay held. */
static int take_early(struct sim_party *party, const uint8_t *head, int64_t now_ns) {
    struct sim_held *early = NULL, **end = &early;
    uint8_t key[SIM_KEY_BYTES];
    memcpy(key, head + SIM_KEY_AT, sizeof key);
    party->early_end = &party->early;
    for (struct sim_held *held = party->early, *next; held; held = next) {
        bool is_mine = !memcmp(held->head + SIM_KEY_AT, key, sizeof key);
        next = held->next;
        held->next = NULL;
        *(is_mine ? end : party->early_end) = held;
        *(is_mine ? &end : &party->early_end) = &held->next;
    }
    if (party->early_end == &party->early) party->early = NULL;
    int result = 0;
    for (struct sim_held *held = early, *next; held; held = next) {
        next = held->next;
        party->early_bytes -= held->size_bytes + MESSAGE_COST_BYTES;
        const uint8_t *data = held->has_values ? held->data : NULL;
        if (!result) result = sim_party_receive(party, held->sender, held->head, data, held->size_bytes, now_ns);
        free(held);
    }
    return result;
}

/* What each of the messages that a call awaits has at least. */
static uint32_t message_bytes(const struct sa_program *program) {
    uint64_t least = 0;
    for (uint32_t i = 0; i < program->arriving; i++) {
        uint32_t node = program->arrival_nodes[i];
        uint64_t count = (uint64_t)(program->highs[node] - program->lows[node]);
        if (!i || count < least) least = count;
    }
    if (program->turn && least) least--; /* pieces of other members differ by one element */
    uint64_t bytes = SIM_HEAD_BYTES + SIM_MESSAGE_FRAMING_BYTES + SA_RELIABLE_BYTES + least * program->itemsize;
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

int sim_party_submit(struct sim_party *party, const struct sim_call_facts *facts, int64_t now_ns) {
    if (party->failed->failure) return -ECANCELED;
    struct sim_call *call = calloc(1, sizeof *call), **at = &party->calls;
    if (!call) return -ENOMEM;
    memcpy(call->head, facts->head, SIM_CALL_BYTES);
    call->priority = facts->priority;
    call->number = facts->number;
    call->execution = sa_execution_new(facts->program, facts->array, facts->scratch, facts->dtype, facts->combine,
                                       facts->combine_elsewhere);
    if (!call->execution) {
        free(call);
        return -ENOMEM;
    }
    if (!*at || party->deadline_ns < 0) party->deadline_ns = now_ns + party->call_timeout_ns / LOOKS;
    while (*at) at = &(*at)->next;
    *at = call;
    party->moved_ns = call->moved_ns = now_ns;
    call->message_bytes = message_bytes(facts->program);
    sa_execution_start(call->execution);
    int result = advance(party, call);
    return result ? result : take_early(party, facts->head, now_ns);
}

int sim_party_sent(struct sim_party *party, struct sim_call *call, uint32_t node) {
    sa_execution_sent(call->execution, node);
    return advance(party, call);
}

/* Nothing moved for the timeout, or one call for PATIENCE of them. */
int sim_party_handle_timer(struct sim_party *party, int64_t now_ns) {
    if (party->deadline_ns < 0 || now_ns < party->deadline_ns || !party->calls) return 0;
    struct sim_call *stuck = party->calls;
    for (struct sim_call *call = party->calls; call; call = call->next) {
        uint64_t moves = sa_execution_moves(call->execution);
        if (moves == call->moves) continue;
        call->moves = moves;
        call->moved_ns = party->moved_ns = now_ns;
    }
    for (struct sim_call *call = party->calls; call; call = call->next)
        if (call->moved_ns < stuck->moved_ns) stuck = call;
    int64_t alone_ns = now_ns - stuck->moved_ns, timeout_ns = party->call_timeout_ns;
    if (now_ns - party->moved_ns >= timeout_ns || alone_ns >= PATIENCE * timeout_ns) {
        party->failed->still_ns = alone_ns;
        party->failed->stuck = stuck->execution;
        return fail(party, SIM_STUCK, NOBODY, stuck->head, NULL);
    }
    int64_t fails_ns = party->moved_ns + timeout_ns, patient_ns = stuck->moved_ns + PATIENCE * timeout_ns;
    if (patient_ns < fails_ns) fails_ns = patient_ns;
    int64_t look_ns = now_ns + timeout_ns / LOOKS;
    party->deadline_ns = fails_ns < look_ns ? fails_ns : look_ns;
    return 0;
}
