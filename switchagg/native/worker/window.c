#include "switchagg/native/worker/window.h"

#include <stdlib.h>

#define SA_BACKOFF_MAX 20u
#define SA_RTT_MAX_NS (1ll << 58) /* nine years; keeps the sums of `sample` in range whatever the caller's clock says */

/* ---- lists through the slots */

static void sa_append(struct sa_window *window, enum sa_slot_state state, uint32_t offset) {
    struct sa_list *list = &window->lists[state];
    struct sa_slot *slot = &window->slots[offset];
    slot->state = (uint8_t)state;
    slot->before = list->tail;
    slot->after = SA_NO_SLOT;
    if (list->tail == SA_NO_SLOT)
        list->head = offset;
    else
        window->slots[list->tail].after = offset;
    list->tail = offset;
}

static void sa_remove(struct sa_window *window, uint32_t offset) {
    struct sa_slot *slot = &window->slots[offset];
    struct sa_list *list = &window->lists[slot->state];
    if (slot->before == SA_NO_SLOT)
        list->head = slot->after;
    else
        window->slots[slot->before].after = slot->after;
    if (slot->after == SA_NO_SLOT)
        list->tail = slot->before;
    else
        window->slots[slot->after].before = slot->before;
}

/* ---- free slots, least chunk first */

static uint32_t sa_ring_at(const struct sa_window *window, uint32_t index) {
    uint32_t at = window->ring_at + index;
    return window->ring[at < window->window ? at : at - window->window];
}

static void sa_heap_push(struct sa_window *window, uint32_t offset) {
    uint32_t at = window->heap_count++;
    uint64_t chunk = window->slots[offset].chunk;
    while (at) {
        uint32_t above = (at - 1) / 2;
        if (window->slots[window->heap[above]].chunk < chunk) break;
        window->heap[at] = window->heap[above];
        at = above;
    }
    window->heap[at] = offset;
}

static void sa_heap_pop(struct sa_window *window) {
    uint32_t count = --window->heap_count, last = window->heap[count], at = 0;
    uint64_t chunk = window->slots[last].chunk;
    for (uint32_t below = 1; below < count; below = 2 * at + 1) {
        if (below + 1 < count &&
            window->slots[window->heap[below + 1]].chunk < window->slots[window->heap[below]].chunk)
            below++;
        if (chunk < window->slots[window->heap[below]].chunk) break;
        window->heap[at] = window->heap[below];
        at = below;
    }
    window->heap[at] = last;
}

static void sa_push_free(struct sa_window *window, uint32_t offset) {
    uint32_t count = window->ring_count;
    if (count && window->slots[sa_ring_at(window, count - 1)].chunk > window->slots[offset].chunk) {
        sa_heap_push(window, offset);
        return;
    }
    uint32_t at = window->ring_at + count;
    window->ring[at < window->window ? at : at - window->window] = offset;
    window->ring_count++;
}

/* Whether the free slot with the least chunk is the ring's; there is one. */
static int sa_least_in_ring(const struct sa_window *window) {
    if (!window->heap_count || !window->ring_count) return window->ring_count > 0;
    return window->slots[sa_ring_at(window, 0)].chunk < window->slots[window->heap[0]].chunk;
}

uint64_t sa_window_first_free(const struct sa_window *window) {
    return window->slots[sa_least_in_ring(window) ? sa_ring_at(window, 0) : window->heap[0]].chunk;
}

/* Whether a chunk is below all in flight: it may be sent without credit, too (G7). */
static int sa_is_lowest(const struct sa_window *window, uint64_t chunk) {
    for (int state = SA_IN_FLIGHT; state <= SA_TO_RESEND; state++)
        for (uint32_t at = window->lists[state].head; at != SA_NO_SLOT; at = window->slots[at].after)
            if (window->slots[at].chunk < chunk) return 0; /* mostly the first */
    return 1;
}

/* The free slot with the least chunk, if that chunk may be sent; else SA_NO_SLOT. */
static uint32_t sa_least_free(const struct sa_window *window) {
    uint32_t count = window->ring_count + window->heap_count;
    if (!count) return SA_NO_SLOT;
    uint32_t offset = sa_least_in_ring(window) ? sa_ring_at(window, 0) : window->heap[0];
    uint64_t chunk = window->slots[offset].chunk;
    if (count <= window->reserve && !sa_is_lowest(window, chunk)) return SA_NO_SLOT;
    return chunk < window->limit ? offset : SA_NO_SLOT;
}

static void sa_pop_free(struct sa_window *window) {
    if (sa_least_in_ring(window)) {
        window->ring_at = window->ring_at + 1 < window->window ? window->ring_at + 1 : 0;
        window->ring_count--;
    } else {
        sa_heap_pop(window);
    }
}

/* ---- calls */

/* Allow the chunks up to the first whose call isn't ready for it, or has no number yet (W4, W16). */
static void sa_raise_limit(struct sa_window *window) {
    struct sa_running *running = window->unready;
    for (; running; running = running->after) {
        uint64_t limit = running->base + running->call.ready;
        if (limit > window->limit) window->limit = limit;
        if (running->call.undecided || running->call.ready < running->call.chunks) break;
    }
    window->unready = running;
}

void sa_window_submit(struct sa_window *window, struct sa_running *running) {
    running->base = window->end;
    running->missing = running->call.chunks;
    window->end = running->end = running->base + running->call.chunks;
    running->before = window->last;
    running->after = NULL;
    if (window->last)
        window->last->after = running;
    else
        window->running = running;
    window->last = running;
    if (!running->missing) window->complete++;
    if (!window->unready) window->unready = running;
    sa_raise_limit(window);
}

/* The call of a chunk about to be sent: mostly the one that sent last. */
static struct sa_running *sa_call_of(struct sa_window *window, uint64_t chunk) {
    struct sa_running *running = window->cursor ? window->cursor : window->running;
    while (chunk >= running->end) running = running->after;
    while (chunk < running->base) running = running->before;
    window->cursor = running;
    return running;
}

static void sa_unlink(struct sa_window *window, struct sa_running *running) {
    if (running->before)
        running->before->after = running->after;
    else
        window->running = running->after;
    if (running->after)
        running->after->before = running->before;
    else
        window->last = running->before;
    if (window->cursor == running) window->cursor = NULL;
}

int sa_window_held(const struct sa_window *window, uint64_t call, uint8_t *held, uint64_t rows) {
    const struct sa_running *running = window->running;
    while (running && (running->describes || running->waiting.event.call != call)) running = running->after;
    if (!running) return 0;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t position = sa_call_position(&running->call, row), chunk = running->base + position;
        held[row] = position != SA_NO_POSITION && chunk < window->limit /* else it came early (Q7) */ &&
                    window->slots[chunk % window->window].chunk > chunk;
    }
    return 1;
}

/* ---- sending and answers */

uint32_t sa_window_peek(struct sa_window *window) {
    uint32_t offset = window->lists[SA_TO_RESEND].head;
    if (offset != SA_NO_SLOT) return offset;
    offset = sa_least_free(window);
    if (offset == SA_NO_SLOT) return SA_NO_SLOT;
    struct sa_slot *slot = &window->slots[offset];
    slot->running = sa_call_of(window, slot->chunk);
    struct sa_call *call = &slot->running->call;
    slot->kind = call->form->kind(call, slot->chunk - slot->running->base);
    return offset;
}

void sa_window_sent(struct sa_window *window, uint32_t offset, int64_t now_ns) {
    struct sa_slot *slot = &window->slots[offset];
    slot->first = slot->state == SA_IS_FREE;
    if (slot->first) {
        sa_pop_free(window);
        slot->first_transmission = window->transmissions;
    } else {
        sa_remove(window, offset);
    }
    if (slot->asked == SA_TO_ASK) slot->asked = SA_ASKED;
    slot->sent_ns = now_ns;
    slot->transmission = window->transmissions++;
    sa_append(window, SA_IN_FLIGHT, offset);
}

/* A chunk in flight is to be resent. */
static void sa_mark(struct sa_window *window, uint32_t offset) {
    sa_remove(window, offset);
    sa_append(window, SA_TO_RESEND, offset);
}

int sa_window_ask_again(struct sa_window *window, uint32_t offset) {
    struct sa_slot *slot = &window->slots[offset];
    if (slot->asked == SA_ASKED) return 0;
    if (slot->state == SA_IN_FLIGHT) sa_mark(window, offset);
    slot->asked = SA_TO_ASK;
    return 1;
}

/* Shell sort by chunk: slots are listed by transmission, so nearly in order already. */
static void sa_sort_lowest(struct sa_window *window) {
    uint32_t *lowest = window->lowest;
    for (uint32_t gap = window->lowest_count / 2; gap; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (uint32_t i = gap; i < window->lowest_count; i++) {
            uint32_t offset = lowest[i], at = i;
            uint64_t chunk = window->slots[offset].chunk;
            for (; at >= gap && window->slots[lowest[at - gap]].chunk > chunk; at -= gap) lowest[at] = lowest[at - gap];
            lowest[at] = offset;
        }
}

/* Take the chunks sent before the last timeout in order: a chunk that this rank resends may wait for others to resend
   it, too. */
static void sa_resend_lowest(struct sa_window *window, uint32_t chunks) {
    while (chunks && window->lowest_at < window->lowest_count) {
        uint32_t offset = window->lowest[window->lowest_at++];
        struct sa_slot *slot = &window->slots[offset];
        if (slot->state != SA_IN_FLIGHT || slot->transmission >= window->before_timeout) continue;
        sa_mark(window, offset);
        chunks--;
    }
}

/* The latest chunk sent before the last timeout. Results come in the order of sending: if the timeout was too early,
   the next one is of a chunk that was not resent, and shows it. Resending the lowest would stay ahead of the results
   and send the whole window again. */
static void sa_resend_newest(struct sa_window *window, uint32_t chunks) {
    uint32_t offset = window->lists[SA_IN_FLIGHT].tail;
    while (offset != SA_NO_SLOT && chunks) {
        uint32_t older = window->slots[offset].before;
        if (window->slots[offset].transmission < window->before_timeout) {
            sa_mark(window, offset);
            chunks--;
        }
        offset = older;
    }
}

/* Keep the SA_OVERTAKEN latest, the least of them first. */
static void sa_keep_newest(struct sa_window *window, uint64_t transmission) {
    uint64_t *newest = window->newest;
    if (transmission <= newest[0]) return;
    uint32_t at = 0;
    for (; at + 1 < SA_OVERTAKEN && newest[at + 1] < transmission; at++) newest[at] = newest[at + 1];
    newest[at] = transmission;
}

/* The smallest part of a window that a mark takes off, twice; a friendly one is a cut to 0.8, as RFC 8511 has it. */
static const uint32_t sa_least_alpha[] = {[SA_CONGESTION_NONE] = 0,
                                          [SA_CONGESTION_DCTCP] = 0,
                                          [SA_CONGESTION_RENO] = 1u << SA_FRACTION_BITS,
                                          [SA_CONGESTION_FRIENDLY] = (2u << SA_FRACTION_BITS) / 5u};

static void sa_end_round(struct sa_window *window) {
    struct sa_congestion *congestion = &window->congestion;
    uint32_t part = (uint32_t)(((uint64_t)congestion->marks << SA_FRACTION_BITS) / congestion->results);
    uint64_t growth = 1u << SA_FRACTION_BITS;
    congestion->alpha += (part >> SA_GAIN_SHIFT) - (congestion->alpha >> SA_GAIN_SHIFT);
    if (congestion->least_alpha) {
        if (congestion->alpha < congestion->least_alpha) congestion->alpha = congestion->least_alpha;
        growth = ((uint64_t)(3 * congestion->alpha) << SA_FRACTION_BITS) / ((4u << SA_FRACTION_BITS) - congestion->alpha);
    }
    if (!congestion->marks && congestion->window < congestion->most) {
        congestion->window += growth;
        if (congestion->window > congestion->most) congestion->window = congestion->most;
    }
    congestion->round = (uint32_t)(congestion->window >> SA_FRACTION_BITS);
    congestion->results = congestion->marks = 0;
    window->reserve = window->window - congestion->round;
}

/* A result came (G6). */
SA_INLINE void sa_follow(struct sa_window *window, uint32_t marked) {
    struct sa_congestion *congestion = &window->congestion;
    if (!congestion->followed || !(congestion->round || marked)) return;
    if (congestion->hold) congestion->hold--;
    if (marked && !congestion->hold) {
        congestion->hold = (uint32_t)(congestion->window >> SA_FRACTION_BITS);
        congestion->window -= congestion->window * congestion->alpha >> (SA_FRACTION_BITS + 1);
        if (congestion->window < 1u << SA_FRACTION_BITS) congestion->window = 1u << SA_FRACTION_BITS;
        uint32_t chunks = (uint32_t)(congestion->window >> SA_FRACTION_BITS);
        window->reserve = window->window - chunks;
        if (!congestion->round) congestion->round = chunks;
    }
    congestion->marks += marked;
    if (++congestion->results >= congestion->round) sa_end_round(window);
}

void sa_window_answered(struct sa_window *window, uint32_t offset, int64_t now_ns, uint32_t marked) {
    struct sa_slot *slot = &window->slots[offset];
    sa_remove(window, offset);
    sa_follow(window, marked);
    slot->state = SA_IS_FREE;
    slot->asked = SA_NOT_ASKED;
    window->timeouts = 0;
    window->timer_start_ns = now_ns;
    if (slot->first) { /* Karn: a retransmitted chunk's result may answer either copy */
        sa_keep_newest(window, slot->transmission + 1);
        window->rtt_ns = (int64_t)((uint64_t)now_ns - (uint64_t)slot->sent_ns);
        window->sampled = 1;
        window->doublings = window->unsampled = 0;
        if (slot->transmission < window->before_timeout) window->recovering = window->certain = 0; /* late, not lost */
    } else if (window->recovering) {
        window->resend_due += 2;
    }
    slot->chunk += window->window;
    slot->version ^= 1;
    sa_push_free(window, offset);
    if (--slot->running->missing == 0) window->complete++;
}

void sa_window_answered_again(struct sa_window *window, uint32_t offset, uint32_t chunk) {
    if (!window->unsampled || (uint32_t)window->slots[offset].chunk - window->window != chunk) return;
    window->unsampled--;
    if (window->doublings < SA_BACKOFF_MAX) window->doublings++;
}

/* Take a slot out of the free ones, wherever it stands. */
static void sa_remove_free(struct sa_window *window, uint32_t offset) {
    uint32_t at = 0, count = window->heap_count;
    while (at < window->ring_count && sa_ring_at(window, at) != offset) at++;
    if (at < window->ring_count) {
        for (; at + 1 < window->ring_count; at++)
            window->ring[(window->ring_at + at) % window->window] = sa_ring_at(window, at + 1);
        window->ring_count--;
        return;
    }
    window->heap_count = 0;
    for (at = 0; at < count; at++) /* the heap grows behind the entries that it is made of */
        if (window->heap[at] != offset) sa_heap_push(window, window->heap[at]);
}

void sa_window_skip(struct sa_window *window, uint32_t offset) {
    struct sa_slot *slot = &window->slots[offset];
    if (slot->chunk == sa_window_first_free(window))
        sa_pop_free(window);
    else
        sa_remove_free(window, offset);
    slot->chunk += window->window;
    slot->version ^= 1;
    sa_push_free(window, offset);
}

int sa_window_write_early(struct sa_window *window, uint64_t chunk, const uint8_t *payload) {
    struct sa_running *running = sa_call_of(window, chunk);
    struct sa_call *call = &running->call;
    uint64_t position = chunk - running->base;
    if (!sa_call_fits(call, window->stream, chunk, position, call->form->kind(call, position), 1, payload)) return 0;
    call->form->write(call, position, payload);
    if (--running->missing == 0) window->complete++;
    sa_raise_limit(window);
    return 1;
}

/* Update the retransmission timeout as RFC 6298 does, within the job's bounds (W7). */
static void sa_sample(struct sa_window *window) {
    int64_t rtt_ns = window->rtt_ns;
    if (rtt_ns > SA_RTT_MAX_NS) rtt_ns = SA_RTT_MAX_NS;
    if (rtt_ns < -SA_RTT_MAX_NS) rtt_ns = -SA_RTT_MAX_NS;
    sa_timeout_sample(window->timeout, rtt_ns);
    window->sampled = 0;
}

void sa_window_after_results(struct sa_window *window) {
    if (window->sampled) sa_sample(window);
    if (window->certain)
        sa_resend_lowest(window, window->resend_due);
    else if (window->recovering)
        sa_resend_newest(window, window->resend_due);
    window->resend_due = 0;
    sa_raise_limit(window);
    for (;;) {
        uint32_t oldest = window->lists[SA_IN_FLIGHT].head;
        if (oldest == SA_NO_SLOT || window->slots[oldest].transmission + 1 >= window->newest[0]) return;
        sa_mark(window, oldest);
    }
}

struct sa_running *sa_window_next_complete(struct sa_window *window) {
    struct sa_running *running = window->complete ? window->running : NULL;
    for (; running && running->missing; running = running->after)
        if (running->describes) return NULL;
    if (!running) return NULL;
    sa_unlink(window, running);
    window->complete--;
    return running;
}

int sa_window_undescribed(const struct sa_window *window, uint64_t chunk) {
    const struct sa_running *running = window->running;
    while (running && running->end <= chunk && !running->describes) running = running->after;
    return running && running->end <= chunk;
}

void sa_window_decided(struct sa_window *window, struct sa_running *running) {
    uint64_t more = running->base + running->call.chunks - running->end;
    if (more && !running->missing) window->complete--;
    running->missing += more;
    running->end += more;
    for (struct sa_running *later = running->after; later; later = later->after) { /* none has sent anything */
        later->base += more;
        later->end += more;
    }
    window->end += more;
    sa_raise_limit(window);
}

/* ---- time */

int64_t sa_window_deadline_ns(const struct sa_window *window) {
    uint32_t oldest = window->lists[SA_IN_FLIGHT].head;
    /* Chunks that wait to be resent count too: a link that stays full must not stop the timer (W9). */
    if (window->failed || (oldest == SA_NO_SLOT && window->lists[SA_TO_RESEND].head == SA_NO_SLOT)) return -1;
    int64_t since_ns = window->timer_start_ns, deadline_ns;
    if (oldest != SA_NO_SLOT && window->slots[oldest].sent_ns > since_ns) since_ns = window->slots[oldest].sent_ns;
    uint32_t doublings = window->timeouts > window->doublings ? window->timeouts : window->doublings;
    if (doublings > SA_BACKOFF_MAX) doublings = SA_BACKOFF_MAX;
    const struct sa_timeout *timeout = window->timeout;
    int64_t wait_ns = timeout->rto_max_ns;
    if (timeout->rto_ns <= timeout->rto_max_ns >> doublings) wait_ns = timeout->rto_ns << doublings;
    return __builtin_add_overflow(since_ns, wait_ns, &deadline_ns) ? INT64_MAX : deadline_ns;
}

/* Whether a chunk that was in flight at the last timeout has no result yet. */
static int sa_left_since_timeout(const struct sa_window *window) {
    for (int state = SA_IN_FLIGHT; state <= SA_TO_RESEND; state++)
        for (uint32_t at = window->lists[state].head; at != SA_NO_SLOT; at = window->slots[at].after)
            if (window->slots[at].first_transmission < window->before_timeout) return 1;
    return 0;
}

void sa_window_time_out(struct sa_window *window, int64_t now_ns) {
    window->timer_start_ns = now_ns;
    /* All are resent: none of their results is a sample (Karn). */
    window->unsampled += window->ring_count + window->heap_count + SA_PROBES >= window->window;
    /* Retransmissions have been answered since the last timeout, and after them nothing came of what was left. */
    if (window->recovering && window->timeouts == 1) window->certain = 1;
    if (!sa_left_since_timeout(window)) window->certain = 0;
    window->recovering = 1;
    window->before_timeout = window->transmissions;
    window->lowest_at = window->lowest_count = 0;
    for (uint32_t at = window->lists[SA_IN_FLIGHT].head; at != SA_NO_SLOT; at = window->slots[at].after)
        window->lowest[window->lowest_count++] = at;
    sa_sort_lowest(window);
    sa_resend_lowest(window, SA_PROBES);
}

uint32_t sa_window_first_unanswered(const struct sa_window *window) {
    uint32_t lowest = SA_NO_SLOT;
    for (uint32_t offset = 0; offset < window->window; offset++) {
        const struct sa_slot *slot = &window->slots[offset];
        if (slot->state != SA_IS_FREE && (lowest == SA_NO_SLOT || slot->chunk < window->slots[lowest].chunk))
            lowest = offset;
    }
    return lowest;
}

/* ---- memory */

void sa_window_start_at(struct sa_window *window, uint64_t chunk) {
    window->end = window->limit = chunk;
    window->ring_at = window->heap_count = 0;
    window->ring_count = window->window;
    for (uint32_t i = 0; i < window->window; i++) {
        uint32_t offset = (uint32_t)((chunk + i) % window->window);
        window->slots[offset].chunk = chunk + i;
        window->slots[offset].version = (chunk + i) / window->window & 1;
        window->ring[i] = offset;
    }
}

int sa_window_init(struct sa_window *windows, const struct sa_job *job, uint32_t stream) {
    struct sa_window *window = &windows[stream], *first = windows;
    while (first < window && first->priority != job->streams[stream].priority) first++;
    const struct sa_stream *config = &job->streams[stream];
    *window = (struct sa_window){
        .stream = stream,
        .first_slot = config->first_slot,
        .window = config->window,
        .priority = config->priority,
        .slots = calloc(config->window, sizeof(struct sa_slot)),
        .ring = calloc(config->window, sizeof(uint32_t)),
        .heap = calloc(config->window, sizeof(uint32_t)),
        .lowest = calloc(config->window, sizeof(uint32_t)),
        .congestion = {.followed = job->congestion != SA_CONGESTION_NONE,
                       .window = (uint64_t)config->window << SA_FRACTION_BITS,
                       .most = (uint64_t)config->window << SA_FRACTION_BITS,
                       .least_alpha = sa_least_alpha[job->congestion],
                       .alpha = 1u << SA_FRACTION_BITS},
        .own_timeout = {.rto_ns = job->rto_initial_ns, .rto_min_ns = job->rto_min_ns, .rto_max_ns = job->rto_max_ns},
        .timeout = &first->own_timeout,
    };
    for (int state = 0; state < 3; state++) window->lists[state] = (struct sa_list){SA_NO_SLOT, SA_NO_SLOT};
    if (!window->slots || !window->ring || !window->heap || !window->lowest) return -1;
    sa_window_start_at(window, 0);
    return 0;
}

void sa_window_end(struct sa_window *window) {
    for (struct sa_running *running = window->running, *after; running; running = after) {
        after = running->after;
        free(running);
    }
    free(window->slots);
    free(window->ring);
    free(window->heap);
    free(window->lowest);
}

uint64_t sa_window_bytes(const struct sa_window *window) {
    return sizeof *window + (uint64_t)window->window * (sizeof(struct sa_slot) + 3 * sizeof(uint32_t));
}
