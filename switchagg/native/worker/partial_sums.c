#include "switchagg/native/worker/partial_sums.h"

#include <stdlib.h>
#include <string.h>

#include "switchagg/native/room.h"

#define SA_DUE_FIRST 64u

/* Without memory the packet is left out: another worker's next one makes the switch ask for it again (Q4). */
static void sa_add_due(struct sa_partial_sums *sums, struct sa_window *window, uint64_t chunk, uint32_t close) {
    if (!sa_takes_one(&sums->due, sums->due_count, &sums->due_capacity, SA_DUE_FIRST, sizeof *sums->due)) return;
    sums->due[sums->due_count++] = (struct sa_due){window, chunk, close};
}

/* ---- inputs */

static void sa_keep(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, const uint8_t *payload) {
    struct sa_partial_slot *slot = &window->partial[offset];
    struct sa_early *early = NULL;
    if (sums->early_bytes + sums->payload_bytes <= SA_RETAINED_BYTES)
        early = malloc(sizeof *early + sums->payload_bytes);
    if (!early) {
        sums->counters[SA_ENDPOINT_EARLY_REFUSED]++;
        return;
    }
    early->after = NULL;
    early->chunk = window->slots[offset].chunk;
    memcpy(early->payload, payload, sums->payload_bytes);
    if (slot->first)
        slot->last->after = early;
    else
        slot->first = early;
    slot->last = early;
    sums->early_bytes += sums->payload_bytes;
    window->early++;
    sums->counters[SA_ENDPOINT_EARLY]++;
    sa_add_due(sums, window, early->chunk, 0);
    sa_window_skip(window, offset);
}

int sa_partial_take(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, uint32_t kind,
                    uint32_t chunk, const uint8_t *payload) {
    const struct sa_slot *slot = &window->slots[offset];
    int flies = slot->state != SA_IS_FREE;
    uint32_t ago = (uint32_t)slot->chunk - chunk, version = slot->version ^ (ago / window->window & 1);
    if (flies && slot->kind & SA_ROUTE_BITS) return 0;
    if (ago >= 1u << 31 || ago % window->window || ago > slot->chunk) return 0;
    if ((kind & SA_VERSION) != (version ? SA_VERSION : 0)) return 0;
    if (flies && !ago) return 0; /* awaited */
    if (ago) {
        sums->counters[SA_ENDPOINT_DUPLICATES]++;
        sa_add_due(sums, window, slot->chunk - ago, 0);
    } else {
        sa_keep(sums, window, offset, payload);
    }
    return 1;
}

/* Nobody needs to ask any more to finalise the slot's chunk. */
static void sa_unlink_closing(struct sa_partial_slot *slot) {
    slot->before->after = slot->after;
    slot->after->before = slot->before;
    slot->before = slot->after = NULL;
}

void sa_partial_answered(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, uint32_t kind,
                         const uint8_t *payload) {
    struct sa_partial_slot *slot = &window->partial[offset];
    /* Without this rank's values its contribution may never have come to the switch. */
    if (payload && sa_route(kind) == SA_ROUTE_ALL &&
        (sa_op(kind) == SA_OP_MAX || !(payload[sums->presence_at] & sums->presence_bit)))
        sa_add_due(sums, window, window->slots[offset].chunk, 0);
    if (slot->after) sa_unlink_closing(slot);
    slot->closes = 0;
}

/* Give its call what the slot has, as far as calls are ready for it. A wrong sum is one for good: this rank has abstained (V9). */
static void sa_take_early_of(struct sa_partial_sums *sums, struct sa_window *window, struct sa_partial_slot *slot,
                             uint64_t *wrong) {
    while (slot->first && slot->first->chunk < window->limit) {
        struct sa_early *early = slot->first;
        int fits = sa_window_write_early(window, early->chunk, early->payload);
        slot->first = early->after;
        sums->counters[fits ? SA_ENDPOINT_RESULTS : SA_ENDPOINT_WRONG_SUMS]++;
        if (!fits && early->chunk < *wrong) *wrong = early->chunk;
        sums->early_bytes -= sums->payload_bytes;
        window->early--;
        free(early);
    }
}

void sa_partial_take_early(struct sa_partial_sums *sums, struct sa_window *window) {
    uint64_t limit, wrong = UINT64_MAX;
    do { /* results of scale chunks raise the limit */
        limit = window->limit;
        for (uint32_t offset = 0; offset < window->window && window->early; offset++)
            sa_take_early_of(sums, window, &window->partial[offset], &wrong);
    } while (window->early && window->limit > limit);
    if (wrong < UINT64_MAX) sa_window_wrong(window, wrong, SA_WRONG_SUM_TOO_EARLY);
}

void sa_partial_handle_timer(struct sa_partial_sums *sums, int64_t now_ns) {
    struct sa_partial_slot *slot;
    while ((slot = sums->closing.after) != &sums->closing && slot->close_ns <= now_ns) {
        sa_unlink_closing(slot);
        slot->closes = 1;
        sa_add_due(sums, slot->window, slot->window->slots[slot - slot->window->partial].chunk, SA_CLOSE);
    }
}

/* ---- outputs */

void sa_partial_sent(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, int64_t now_ns,
                     uint8_t *rank) {
    struct sa_partial_slot *slot = &window->partial[offset];
    if (!sums->close_after_ns || window->slots[offset].kind & SA_ROUTE_BITS) return;
    if (window->slots[offset].first) {
        slot->close_ns = now_ns + sums->close_after_ns;
        slot->before = sums->closing.before;
        slot->after = &sums->closing;
        slot->before->after = sums->closing.before = slot;
    } else if (slot->closes) {
        *rank |= SA_CLOSE;
    }
}

static void sa_build_due(struct sa_partial_sums *sums, const struct sa_due *due, struct sa_header header,
                         uint8_t *frame) {
    const struct sa_window *window = due->window;
    uint64_t turn = due->chunk / window->window;
    header.kind = SA_BE32(sa_kind(SA_OP_SUM, SA_ROUTE_ALL, 0, turn & 1 ? SA_VERSION : 0));
    header.slot = SA_BE16((uint16_t)(window->first_slot + due->chunk % window->window));
    header.stream = (uint8_t)window->stream;
    header.rank |= (uint8_t)due->close;
    header.elements = 0;
    header.chunk = SA_BE32((uint32_t)due->chunk);
    memcpy(frame, &header, sizeof header);
    sums->counters[due->close ? SA_ENDPOINT_FINALISE_REQUESTS : SA_ENDPOINT_ABSTAINED]++;
}

uint32_t sa_partial_frames(struct sa_partial_sums *sums, uint32_t class, uint32_t limit, const struct sa_header *header,
                           uint8_t *const *places, uint8_t *out) {
    uint32_t count = 0, left = 0;
    for (uint32_t at = 0; at < sums->due_count; at++) {
        struct sa_due due = sums->due[at];
        if (count == limit || (class != SA_ANY_CLASS && sa_class_of(due.window->priority) != class)) {
            sums->due[left++] = due;
            continue;
        }
        sa_build_due(sums, &due, *header, places ? places[count] : out + (uint64_t)count * SA_HEADER_BYTES);
        count++;
    }
    sums->due_count = left;
    return count;
}

/* ---- memory */

int sa_partial_init(struct sa_partial_sums *sums, const struct sa_job *job, uint32_t wire_rank,
                    struct sa_window *windows, uint64_t *counters) {
    uint32_t presence = (job->workers + 31) / 32, tag = job->verify == SA_VERIFY_ON ? SA_TAG_LIMBS : 0;
    *sums = (struct sa_partial_sums){
        .presence = presence,
        .presence_at = 4 * (job->elements - tag - presence + wire_rank / 32) + 3 - wire_rank % 32 / 8, /* big-endian */
        .presence_bit = 1u << wire_rank % 8,
        .payload_bytes = 4 * job->elements,
        .close_after_ns = job->close_after_ns,
        .counters = counters,
    };
    sums->closing.before = sums->closing.after = &sums->closing;
    for (uint32_t stream = 0; stream < job->stream_count; stream++) {
        struct sa_window *window = &windows[stream];
        window->partial = calloc(window->window, sizeof *window->partial);
        if (!window->partial) return -1;
        for (uint32_t offset = 0; offset < window->window; offset++) window->partial[offset].window = window;
    }
    return 0;
}

void sa_partial_end(struct sa_partial_sums *sums, struct sa_window *windows, uint32_t streams) {
    for (uint32_t stream = 0; stream < streams; stream++) {
        struct sa_window *window = &windows[stream];
        for (uint32_t offset = 0; window->partial && offset < window->window; offset++)
            for (struct sa_early *early = window->partial[offset].first, *after; early; early = after) {
                after = early->after;
                free(early);
            }
        free(window->partial);
    }
    free(sums->due);
}
