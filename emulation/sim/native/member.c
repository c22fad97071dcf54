#include "emulation/sim/native/member_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "emulation/sim/native/frames.h"
#include "emulation/sim/native/message.h"

/* ---- connections */

static void sender_due(void *object);
static void receiver_due(void *object);

static struct outgoing *outgoing_of(struct sim_member *member, uint32_t peer) {
    uint32_t class_bits = peer & ~SIM_NODE_MASK;
    if (member->last_out && member->last_out->peer == peer) return member->last_out;
    struct outgoing *out = sim_peers_find(&member->out, peer);
    if (out) return member->last_out = out;
    if (!(out = aligned_alloc(64, sizeof *out)) || sim_peers_add(&member->out, peer, out)) {
        free(out);
        member->sim->queue.lacking = 1;
        return NULL;
    }
    uint32_t to = (peer & SIM_NODE_MASK) - member->group->facts.first;
    *out = (struct outgoing){.member = member, .peer = peer, .connection = member->member | class_bits};
    sa_sender_begin(&out->sender, member->group->facts.config_of(member->member, to));
    sim_alarm_init(&out->alarm, member->sim, sender_due, out);
    return member->last_out = out;
}

static struct incoming *incoming_of(struct sim_member *member, uint32_t peer) {
    uint32_t first = member->group->facts.first;
    if (member->last_in && member->last_in->peer == peer) return member->last_in;
    struct incoming *in = sim_peers_find(&member->in, peer);
    if (in) return member->last_in = in;
    if (!(in = aligned_alloc(64, sizeof *in)) || sim_peers_add(&member->in, peer, in)) {
        free(in);
        member->sim->queue.lacking = 1;
        return NULL;
    }
    *in = (struct incoming){.member = member, .peer = peer, .connection = peer - first};
    uint32_t from = (peer & SIM_NODE_MASK) - first;
    sa_receiver_begin(&in->receiver, member->group->facts.config_of(from, member->member));
    sim_alarm_init(&in->alarm, member->sim, receiver_due, in);
    return member->last_in = in;
}

/* ---- reports to Python, and failures */

static void stop(struct sim_member *member, int result) {
    struct sa_sim *sim = member->sim;
    if (result == -ENOMEM) sim->queue.lacking = 1;
    if (result != -ECANCELED || member->group->facts.report) return;
    if (!sim->all->in_window) {
        sim_member_failed(member);
    } else if (!sim->noticed) {
        sim->fail = sim_member_failed;
        sim->failing = member;
    }
    sim_notice(sim, member->number);
}

/* Reports to a party in Python. */
static void report(struct sim_member *member, enum sim_report what, uint32_t peer, uint64_t message) {
    sim_before_python(member->sim);
    int64_t deadline_ns = member->group->facts.report(member->member, what, peer, message);
    if (deadline_ns == SIM_BROKEN_OFF)
        member->failed->failure = SIM_ELSEWHERE;
    else
        member->deadline_ns = deadline_ns;
}

static void unanswered(struct sim_member *member, const struct outgoing *out) {
    struct sim_failed *failed = member->failed;
    failed->failure = SIM_UNANSWERED;
    failed->member = member->member;
    failed->peer = (out->peer & SIM_NODE_MASK) - member->group->facts.first;
    if (member->group->facts.report) report(member, SIM_REPORT_UNANSWERED, failed->peer, 0);
    stop(member, -ECANCELED);
}

static void tell(struct sim_member *member) {
    if (member->party.finished_count) sim_notice(member->sim, member->number);
}

/* ---- messages: the queue, and what left it */

static uint32_t class_of(int32_t priority) { /* as switchagg/priority.py */
    return priority < 0 ? 0 : priority > (int32_t)SIM_BEST_EFFORT ? SIM_BEST_EFFORT : (uint32_t)priority;
}

static uint32_t address_of(const struct sim_member *member, uint32_t to, int32_t priority) {
    to += member->group->facts.first;
    return member->strict ? to | (SIM_BEST_EFFORT - class_of(priority)) << SIM_CLASS_SHIFT : to;
}

static struct sim_message *message_of(struct sim_member *member, struct sim_call *call, uint32_t node, int32_t priority) {
    const struct sa_execution *execution = call->execution;
    uint64_t size_bytes = sa_execution_size_bytes(execution, node);
    const uint8_t *values = execution->array && size_bytes ? sa_execution_memory(execution, node) : NULL;
    struct sim_message *message = sim_message_new(member->sim, SIM_HEAD_BYTES, values, size_bytes);
    if (!message) return NULL;
    sim_party_head(call, node, message->reliable.head);
    message->call = call;
    message->number = node;
    message->takes_ns = execution->program->labels[node].segment ? 0 : member->group->transfer_ns;
    message->address = address_of(member, sa_program_to(execution->program, node), priority);
    return message;
}

/* A message is below its queue. */
static void carry(struct sim_member *member, struct flow *flow, struct sim_message *message) {
    struct outgoing *out = outgoing_of(member, message->address);
    if (!out) {
        sim_message_let_go(member->sim, message);
        return;
    }
    message->to = out;
    sa_sender_submit(&out->sender, &message->reliable);
    *flow->departing_end = message;
    flow->departing_end = &message->next;
}

/* A message leaves its queue; once the host comes to it, it is carried. */
static void take_out(struct sim_member *member, struct flow *flow, const struct sa_credit_waiting *entry) {
    bool is_made = member->group->facts.report;
    struct sim_message *message = is_made ? entry->item : message_of(member, entry->item, entry->node, entry->priority);
    if (!message) {
        member->sim->queue.lacking = 1;
        return;
    }
    flow->queue.below_bytes += (int64_t)message->reliable.size_bytes;
    if (!message->takes_ns)
        carry(member, flow, message);
    else
        sim_processor_run(&member->processor, (struct sim_task){.message = message, .flow = flow});
}

static struct flow *flow_of(struct sim_member *member, int32_t priority) {
    return &member->flows[member->strict ? class_of(priority) : 0];
}

/* Moves messages from calls to queues, and from queues to connections. A party in Python has filled the queues. */
static void feed(struct sim_member *member) {
    uint32_t flows = member->strict ? SIM_CLASSES : 1;
    struct sa_credit_waiting entry = {0};
    struct sim_call *call;
    int64_t node;
    int64_t credit_bytes = member->group->facts.credit_bytes;
    int result = 0;
    while (!member->group->facts.report && (node = sim_party_next(&member->party, &call)) >= 0 && !result) {
        entry = (struct sa_credit_waiting){.priority = call->priority, .node = (uint32_t)node, .item = call};
        result = sa_credit_queue_push(&flow_of(member, entry.priority)->queue, entry);
    }
    for (uint32_t i = 0; i < flows; i++)
        while (!member->processor.first && !result && sa_credit_queue_pop(&member->flows[i].queue, credit_bytes, &entry))
            take_out(member, &member->flows[i], &entry);
    stop(member, result);
}

/* ---- sending */

/* Sends up to so many frames of a connection. */
static uint32_t put(struct sim_member *member, struct outgoing *out, uint32_t limit) {
    struct sa_sim *sim = member->sim;
    struct sa_segment segment;
    uint32_t count = 0;
    uint64_t flow_bps = member->group->flow_bps;
    if (flow_bps && (!limit || sim_pace_next_ns(&out->pace) > sim->now_ns)) {
        sim_alarm_set(&member->paced, sim_pace_next_ns(&out->pace));
        return 0;
    }
    if (flow_bps) limit = 1;
    for (int index; count < limit && (index = sa_sender_next(&out->sender, sim->now_ns, &segment)); count++) {
        struct sim_body *body = index > 0 ? sim_data_frame(sim, &segment, out->sender.config, out->connection) : NULL;
        if (!body) {
            stop(member, -ENOMEM);
            break;
        }
        uint32_t wire_bytes = body->wire_bytes;
        sim_link_send(member->link, body, sim->now_ns, member->address, out->peer);
        if (!flow_bps) continue;
        sim_pace_left(&out->pace, flow_bps, sim->now_ns, wire_bytes);
        sim_alarm_set(&member->paced, sim_pace_next_ns(&out->pace));
    }
    if (count) sim_alarm_set(&out->alarm, sa_sender_deadline_ns(&out->sender));
    return count;
}

static void pump(struct sim_member *member);

static void pump_again(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_member *member = object;
    (void)body, (void)sender, (void)to;
    member->pumps_again = 0;
    pump(member);
}

/* The last frame of a message is on the link. */
static void left(struct sim_member *member, struct flow *flow, struct sim_message *message) {
    flow->queue.below_bytes -= (int64_t)message->reliable.size_bytes;
    if (!message->call) {
        report(member, SIM_REPORT_SENT, message->address & SIM_NODE_MASK, message->number);
        if (member->failed->failure) return;
    } else {
        stop(member, sim_party_sent(&member->party, message->call, (uint32_t)message->number));
        tell(member);
    }
    feed(member);
    if (member->pumps_again) return;
    for (uint32_t i = 0; i < (member->strict ? SIM_CLASSES : 1); i++)
        if (member->flows[i].departing && &member->flows[i] != flow) {
            member->pumps_again = 1; /* once this class's uplink is done */
            sim_schedule(member->sim, member->sim->now_ns, pump_again, member, 0, 0);
            return;
        }
}

static uint32_t give_repeats(struct sim_member *member, struct flow *flow, uint32_t limit) {
    uint32_t frames = 0, remaining = 0;
    for (uint32_t i = 0; i < flow->repeating_count; i++) {
        struct outgoing *out = flow->repeating[i];
        uint32_t repeats = sa_sender_repeats(&out->sender);
        frames += put(member, out, repeats < limit - frames ? repeats : limit - frames);
        if ((out->repeats = sa_sender_repeats(&out->sender) > 0)) flow->repeating[remaining++] = out;
    }
    flow->repeating_count = remaining;
    return frames;
}

/* To the link: repetitions, then messages in order; those behind a full window wait. */
static uint32_t give(void *host, uint32_t limit, uint32_t kind) {
    struct sim_member *member = host;
    struct flow *flow = &member->flows[kind == SIM_ALL_CLASSES ? 0 : kind];
    member->is_busy = 1;
    uint32_t frames = give_repeats(member, flow, limit);
    uint64_t gives = ++member->gives;
    for (struct sim_message **at = &flow->departing, *message; frames < limit && (message = *at);) {
        struct outgoing *out = message->to;
        if (out->full_at == gives) {
            at = &message->next;
            continue;
        }
        uint64_t wanted = message->reliable.end - out->sender.next;
        if (wanted > limit - frames) wanted = limit - frames;
        uint32_t added = put(member, out, (uint32_t)wanted);
        frames += added;
        if (out->sender.next == message->reliable.end) {
            if (!(*at = message->next)) flow->departing_end = at;
            left(member, flow, message);
        } else if (added < wanted) {
            out->full_at = gives;
            at = &message->next;
        }
        if (member->failed->failure || member->sim->queue.lacking) break;
    }
    member->is_busy = 0;
    return frames;
}

static void pump(struct sim_member *member) {
    if (member->is_busy || member->failed->failure) return; /* a caller that is in it will look again */
    member->is_busy = 1;
    feed(member);
    member->is_busy = 0;
    for (uint32_t i = 0; i < (member->strict ? SIM_CLASSES : 1); i++) {
        struct flow *flow = &member->flows[i];
        if (!flow->departing && !flow->repeating_count) continue;
        if (!flow->has_uplink)
            sim_uplink_init(&flow->uplink, member->link, member->strict ? i : SIM_ALL_CLASSES,
                            member->segment_bytes + SA_RELIABLE_BYTES + SIM_MESSAGE_FRAMING_BYTES, give, member);
        flow->has_uplink = 1;
        sim_uplink_pump(&flow->uplink);
    }
    sim_alarm_set(&member->timer,
                  member->group->facts.report ? member->deadline_ns : sim_party_deadline_ns(&member->party));
}

void sa_sim_member_pump(struct sim_member *member) {
    if (member->group->facts.report && !member->is_busy && !member->failed->failure) report(member, SIM_REPORT_PUMPS, 0, 0);
    pump(member);
}

/* ---- receiving */

static void acknowledge(struct sim_member *member, struct incoming *in) {
    struct sa_sim *sim = member->sim;
    struct sa_ack ack;
    if (sa_receiver_next(&in->receiver, sim->now_ns, &ack)) {
        struct sim_body *body = sim_ack_frame(sim, &ack, in->connection);
        if (body) sim_link_send(member->link, body, sim->now_ns, member->address, in->peer);
    }
    sim_alarm_set(&in->alarm, in->receiver.ack_at_ns);
}

/* List a connection that repeats, and wait for its deadline. */
static void after_input(struct sim_member *member, struct outgoing *out) {
    if (!out->repeats && sa_sender_repeats(&out->sender)) {
        struct flow *flow = &member->flows[member->strict ? SIM_BEST_EFFORT - (out->peer >> SIM_CLASS_SHIFT) : 0];
        if (flow->repeating_count == flow->repeating_room) {
            uint32_t room = flow->repeating_room ? 2 * flow->repeating_room : 4;
            struct outgoing **repeating = realloc(flow->repeating, room * sizeof(struct outgoing *));
            if (!repeating) {
                stop(member, -ENOMEM);
                return;
            }
            flow->repeating = repeating;
            flow->repeating_room = room;
        }
        uint32_t at = flow->repeating_count++;
        for (; at && flow->repeating[at - 1]->peer > out->peer; at--) flow->repeating[at] = flow->repeating[at - 1];
        flow->repeating[at] = out;
        out->repeats = 1;
    }
    sim_alarm_set(&out->alarm, sa_sender_deadline_ns(&out->sender));
}

/* Gives the party a message. */
static void hand(struct sim_member *member, uint32_t from, struct sim_message *message, bool is_last) {
    struct sa_reliable_message *reliable = &message->reliable;
    if (member->group->facts.report)
        report(member, is_last ? SIM_REPORT_CAME_LAST : SIM_REPORT_CAME, from, message->number);
    else
        stop(member, sim_party_receive(&member->party, from, reliable->head, reliable->data,
                                       reliable->size_bytes - reliable->head_bytes, member->sim->now_ns));
    sim_message_let_go(member->sim, message);
}

static void take_data(struct sim_member *member, const struct sim_body *body, uint32_t sender, uint32_t peer) {
    struct incoming *in = incoming_of(member, peer);
    if (!in) return;
    struct sa_segment segment = sim_segment_in(body);
    stop(member, sa_receiver_receive(&in->receiver, &segment, member->sim->now_ns));
    acknowledge(member, in);
    struct sa_reliable_message *message = sa_receiver_message(&in->receiver), *next;
    if (!message) return;
    for (uint32_t from = sender - member->group->facts.first; message && !member->failed->failure; message = next) {
        struct sim_message *part = (struct sim_message *)message;
        next = sa_receiver_message(&in->receiver);
        __atomic_add_fetch(&part->holders, 1, __ATOMIC_RELAXED);
        if (member->group->transfer_ns)
            sim_processor_run(&member->processor, (struct sim_task){.message = part, .from = from});
        else
            hand(member, from, part, !next);
    }
    if (member->group->transfer_ns) return;
    tell(member);
    pump(member);
}

/* The host comes to a message. */
static void finish(void *host, const struct sim_task *task) {
    struct sim_member *member = host;
    if (member->failed->failure) return;
    if (task->flow) {
        carry(member, task->flow, task->message);
    } else {
        hand(member, task->from, task->message, true);
        tell(member);
    }
    pump(member);
}

static void take_ack(struct sim_member *member, const struct sim_body *body, uint32_t peer) {
    struct outgoing *out = outgoing_of(member, peer);
    if (!out) return;
    struct sa_ack ack = sim_ack_in(body);
    stop(member, sa_sender_receive(&out->sender, &ack, member->sim->now_ns));
    for (struct sim_message *message; (message = (struct sim_message *)sa_sender_returned(&out->sender));)
        sim_message_let_go(member->sim, message);
    after_input(member, out);
    pump(member);
}

static void receive(struct sim_node *node, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_member *member = (struct sim_member *)node;
    uint32_t peer = sender | (to & ~((1u << SIM_CLASS_SHIFT) - 1));
    if (sim_body_is_broken(body))
        member->drop_checksum++;
    else if (sim_has_segment(body))
        take_data(member, body, sender, peer);
    else
        take_ack(member, body, peer);
    sim_body_let_go(&member->sim->pool, body);
}

/* Whom it is from, it has had to do with last, most often. */
static void look(struct sim_node *node, const struct sim_entry *entry, uint32_t step) {
    const struct sim_member *member = (const struct sim_member *)node;
    bool is_answer = !sim_has_segment(entry->body);
    if (step == 1) {
        const char *connection = is_answer ? (const char *)member->last_out : (const char *)member->last_in;
        size_t bytes = is_answer ? sizeof *member->last_out : sizeof *member->last_in;
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(connection + at, 1);
        if (!is_answer) sim_link_look(member->link);
    } else if (!is_answer) {
        sim_link_look_at_place(member->link);
    } else if (member->last_out) {
        sa_sender_look(&member->last_out->sender);
    }
}

/* ---- timers */

static void sender_due(void *object) {
    struct outgoing *out = object;
    struct sim_member *member = out->member;
    if (sa_sender_handle_timer(&out->sender, member->sim->now_ns)) {
        unanswered(member, out);
        return;
    }
    after_input(member, out);
    pump(member);
}

static void receiver_due(void *object) {
    struct incoming *in = object;
    sa_receiver_handle_timer(&in->receiver, in->member->sim->now_ns);
    acknowledge(in->member, in);
}

static void paced(void *object) { pump(object); }

static void party_due(void *object) {
    struct sim_member *member = object;
    if (member->group->facts.report)
        report(member, SIM_REPORT_DUE, 0, 0);
    else
        stop(member, sim_party_handle_timer(&member->party, member->sim->now_ns));
    tell(member);
    pump(member);
}

/* ---- building, and what Python asks */

static void out_free(struct outgoing *out) {
    for (struct sa_reliable_message *message = out->sender.oldest, *next; message; message = next) {
        next = message->next;
        sim_message_let_go(out->member->sim, (struct sim_message *)message);
    }
    sa_sender_end(&out->sender);
    free(out);
}

static void member_free(struct sim_node *node) {
    struct sim_member *member = (struct sim_member *)node;
    for (uint32_t i = 0; i < member->out.room; i++)
        if (member->out.items[i]) out_free(member->out.items[i]);
    for (uint32_t i = 0; i < member->in.room; i++) {
        if (!member->in.items[i]) continue;
        sa_receiver_end(&((struct incoming *)member->in.items[i])->receiver);
        free(member->in.items[i]);
    }
    for (uint32_t i = 0; i < (member->strict ? SIM_CLASSES : 1); i++) {
        struct sa_credit_queue *queue = &member->flows[i].queue;
        for (uint32_t j = 0; member->group->facts.report && j < queue->count; j++)
            sim_message_let_go(member->sim, queue->heap[j].item);
        free(queue->heap);
        free(member->flows[i].repeating);
        sim_uplink_end(&member->flows[i].uplink);
    }
    sim_processor_end(&member->processor);
    free(member->out.items);
    free(member->in.items);
    sim_party_end(&member->party);
    free(member);
}

struct sim_member *sa_sim_member(struct sim_group *group, struct sim_link *link, uint32_t number_in_group,
                                 uint32_t number, uint32_t strict) {
    uint32_t flows = strict ? SIM_CLASSES : 1;
    size_t bytes = (sizeof(struct sim_member) + flows * sizeof(struct flow) + 63) / 64 * 64;
    struct sim_member *member = aligned_alloc(64, bytes);
    if (!member) return NULL;
    memset(member, 0, bytes);
    struct sa_sim *sim = link->sim;
    *member = (struct sim_member){.node = {receive, member_free, NULL, look, sim_member_quiet_ns}, .link = link, .sim = sim,
                                  .group = group, .failed = &group->failures[sim->number], .member = number_in_group, .number = number, .strict = strict,
                                  .address = group->facts.first + number_in_group, .deadline_ns = -1};
    member->segment_bytes = group->facts.config_of(number_in_group, number_in_group)->segment_bytes;
    for (uint32_t i = 0; i < flows; i++) member->flows[i].departing_end = &member->flows[i].departing;
    sim_party_begin(&member->party, number_in_group, group->facts.call_timeout_ns, member->failed);
    sim_alarm_init(&member->paced, sim, paced, member);
    sim_processor_init(&member->processor, sim, finish, member);
    sim_alarm_init(&member->timer, sim, party_due, member);
    sim_own(sim, &member->node);
    return sim_attach(sim, member->address, &member->node) ? NULL : member;
}

/* Python is asked about connections before a call begins, and isn't while other threads are at work. */
static void connect(struct sim_member *member, const struct sim_call_facts *facts) {
    const struct sa_program *program = facts->program;
    for (uint32_t node = 0; node < program->nodes; node++)
        if (program->kinds[node] == SA_NODE_SEND) outgoing_of(member, address_of(member, sa_program_to(program, node), facts->priority));
    for (uint32_t from = 0; from < program->members; from++)
        if (program->expected[from]) incoming_of(member, address_of(member, sa_program_member(program, from), facts->priority));
}

int sa_sim_member_submit(struct sim_member *member, const struct sim_call_facts *facts) {
    struct sim_partitions *all = member->sim->all;
    if (facts->combine_elsewhere) all->in_turn = 1;
    if (all->count > 1) connect(member, facts);
    all->python_acted = 1;
    all->quiet_ns = 0;
    int result = sim_party_submit(&member->party, facts, member->sim->now_ns);
    if (result == -ECANCELED) sim_member_failed(member);
    return result;
}

int sa_sim_member_push(struct sim_member *member, uint64_t number, uint32_t to, int32_t priority, const uint8_t *head,
                       uint32_t head_bytes, uint32_t costs, const uint8_t *values, uint64_t size_bytes) {
    struct sim_message *message = sim_message_new(member->sim, head_bytes, values, size_bytes);
    if (!message) return -ENOMEM;
    memcpy(message->reliable.head, head, head_bytes);
    message->number = number;
    message->takes_ns = costs ? member->group->transfer_ns : 0;
    message->address = address_of(member, to, priority);
    int result = sa_credit_queue_push(&flow_of(member, priority)->queue,
                                       (struct sa_credit_waiting){.priority = priority, .item = message});
    if (result) sim_message_let_go(member->sim, message);
    return result;
}

int64_t sa_sim_member_ended(struct sim_member *member) {
    struct sim_party *party = &member->party;
    if (!party->finished_count) return -1;
    uint32_t number = party->finished[0];
    memmove(party->finished, party->finished + 1, --party->finished_count * sizeof *party->finished);
    return number;
}

uint64_t sa_sim_member_retransmissions(const struct sim_member *member) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < member->out.room; i++)
        if (member->out.items[i]) count += ((struct outgoing *)member->out.items[i])->sender.counters[SA_RETRANSMITTED];
    return count;
}

uint64_t sa_sim_member_drop_checksum(const struct sim_member *member) { return member->drop_checksum; }
