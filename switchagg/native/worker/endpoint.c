#include "switchagg/native/worker/endpoint.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/worker/partial_sums.h"
#include "switchagg/native/worker/small_call.h"
#include "switchagg/native/worker/window.h"

/* The bits of a packet's kind that are its route and owner. */
#define SA_SHARE (3u << 9 | 63u << 3)

struct sa_endpoint {
    struct sa_header header; /* as on the wire; kind, slot, stream and chunk differ from frame to frame */
    uint32_t frame_bytes;
    uint32_t elements;
    uint32_t workers;
    uint32_t rank; /* in the job; header.rank: among what sends to its switch */
    uint32_t stream_count;
    uint32_t retry_limit;
    uint32_t size_only; /* without values */
    uint64_t bytes;
    struct sa_window *windows;
    struct sa_window **by_priority; /* in the order of sending: urgent ones first, equal ones round robin */
    struct sa_window **next_order;     /* scratch for the next order */
    struct sa_window **touched;     /* by the bundle that is being received, in that order */
    uint32_t fixed_point, wide;     /* codecs: of floats, and of small calls of them */
    uint32_t plain;                 /* the codec of descriptions */
    struct sa_predictions predictions;
    uint32_t *scratch;              /* E elements, for sa_call_form.write */
    struct sa_waiting_event *events, *last_event;
    struct sa_partial_sums partial;
    struct sa_verified_sums verified;
    uint64_t counters[SA_ENDPOINT_ALL_COUNTERS];
};

/* ---- events */

static void sa_add_event(struct sa_endpoint *endpoint, struct sa_waiting_event *waiting) {
    waiting->next = NULL;
    if (endpoint->events)
        endpoint->last_event->next = waiting;
    else
        endpoint->events = waiting;
    endpoint->last_event = waiting;
}

static void sa_free_call(struct sa_endpoint *endpoint, struct sa_running *running) {
    endpoint->bytes -= running->bytes;
    free(running);
}

/* A call and its event are one block of memory, freed together. */
static void sa_forget(struct sa_endpoint *endpoint, struct sa_waiting_event *waiting) {
    if (waiting->event.kind == SA_CALL_COMPLETED) sa_free_call(endpoint, (struct sa_running *)waiting);
}

SA_EXPORT uint32_t sa_endpoint_next_event(struct sa_endpoint *endpoint, struct sa_event *event) {
    struct sa_waiting_event *waiting = endpoint->events;
    if (!waiting) {
        *event = (struct sa_event){0};
        return SA_NO_EVENT;
    }
    endpoint->events = waiting->next;
    *event = waiting->event;
    sa_forget(endpoint, waiting);
    return event->kind;
}

/* ---- commands */

/* extra: bytes behind it, for its codes or words. Returns NULL without memory. */
static struct sa_running *sa_running_new(const struct sa_submission *submission, uint64_t extra) {
    uint64_t bytes = sizeof(struct sa_running) + extra;
    struct sa_running *running = malloc(bytes);
    if (!running) return NULL;
    *running = (struct sa_running){.bytes = bytes};
    running->waiting.event =
        (struct sa_event){.kind = SA_CALL_COMPLETED, .stream = submission->stream, .call = submission->call};
    return running;
}

static const struct sa_verified_sums *sa_verified_of(const struct sa_endpoint *endpoint) {
    return endpoint->verified.elements && !endpoint->size_only ? &endpoint->verified : NULL;
}

static void sa_chunked_init(struct sa_endpoint *endpoint, struct sa_running *running,
                            const struct sa_submission *submission, const struct sa_coding *coding, uint32_t presence) {
    struct sa_caller caller = {endpoint->rank, endpoint->elements, presence, endpoint->scratch,
                               endpoint->counters + SA_ENDPOINT_CHUNKS_OF, sa_verified_of(endpoint)};
    sa_call_init(&running->call, coding, submission, &caller, (int16_t *)(running + 1));
}

/* The call that tells all workers of the next one: each fills its own words, and the codes of a small one (W12, W16). */
static struct sa_running *sa_description_new(struct sa_endpoint *endpoint, const struct sa_submission *submission,
                                             struct sa_running *described) {
    struct sa_small *small = described->call.small;
    uint64_t words = (uint64_t)SA_WORDS * endpoint->workers, count = words + (small ? 3 * small->rows : 0);
    struct sa_submission head = {.stream = submission->stream, .op = SA_OP_MAX, .count = count, .unit = 1};
    struct sa_running *running = sa_running_new(&head, sizeof(int32_t) * count);
    if (!running) return NULL;
    struct sa_coding coding;
    sa_coding_begin(&coding, endpoint->plain, SA_INT32, endpoint->elements, endpoint->workers);
    sa_chunked_init(endpoint, running, &head, &coding, 0);
    int32_t *codes = (int32_t *)(running + 1);
    for (uint64_t i = 0; i < words; i++) codes[i] = INT32_MIN;
    if (submission->description[0])
        memcpy(codes + SA_WORDS * endpoint->rank, submission->description, sizeof submission->description);
    if (small && !endpoint->size_only) sa_small_predict(&described->call, &endpoint->predictions, codes + words);
    running->call.data = (uint8_t *)codes;
    running->describes = described;
    return running;
}

static struct sa_running *sa_described_new(struct sa_endpoint *endpoint, const struct sa_submission *submission) {
    int sum_of_all = submission->op == SA_OP_SUM && submission->route == SA_ROUTE_ALL;
    uint32_t rows = 0, presence = sum_of_all ? endpoint->partial.presence : 0;
    uint32_t room = endpoint->elements - presence - (submission->op == SA_OP_SUM ? endpoint->verified.elements : 0);
    if (submission->codec == endpoint->fixed_point && submission->dtype == SA_FLOAT32 && !submission->residual &&
        sum_of_all && !presence)
        rows = sa_small_rows(room, endpoint->workers, submission->count);
    struct sa_coding coding;
    sa_coding_begin(&coding, rows ? endpoint->wide : submission->codec, submission->dtype, room, endpoint->workers);
    coding.key = submission->key;
    if (submission->residual) coding.random = 0; /* what is lost is fed back */
    uint64_t extra = rows ? sa_small_bytes(room, rows)
                          : sizeof(int16_t) * (endpoint->size_only ? 0 : sa_call_codes(&coding, submission, endpoint->elements));
    struct sa_running *running = sa_running_new(submission, extra);
    if (!running) return NULL;
    if (rows)
        sa_small_init(&running->call, &coding, submission, sa_verified_of(endpoint), (struct sa_small *)(running + 1));
    else
        sa_chunked_init(endpoint, running, submission, &coding, presence);
    return running;
}

static void sa_enqueue(struct sa_endpoint *endpoint, uint32_t stream, struct sa_running *running) {
    endpoint->bytes += running->bytes;
    sa_window_submit(&endpoint->windows[stream], running);
}

/* ---- inputs */

/* Count a datagram that is no result of this job, under the first check that it fails (P6, W5). */
static void sa_count_rejected(struct sa_endpoint *endpoint, const struct sa_header *header, uint32_t size) {
    static const uint8_t faults[SA_BASIC_OUTCOMES] = {
        [SA_DROP_MAGIC] = SA_ENDPOINT_DROP_MAGIC, [SA_DROP_WIRE_VERSION] = SA_ENDPOINT_DROP_WIRE_VERSION, [SA_DROP_OP] = SA_ENDPOINT_DROP_OP,
        [SA_DROP_FLAGS] = SA_ENDPOINT_DROP_FLAGS, [SA_DROP_LENGTH] = SA_ENDPOINT_DROP_LENGTH,
    };
    enum sa_outcome fault = sa_fault(SA_BE32(header->kind), SA_BE16(header->elements), size);
    uint32_t counter = SA_ENDPOINT_DROP_FOREIGN;
    if (fault != SA_ABSORBED)
        counter = faults[fault];
    else if (header->job != endpoint->header.job)
        counter = SA_ENDPOINT_DROP_JOB;
    else if (header->generation != endpoint->header.generation)
        counter = SA_ENDPOINT_DROP_GENERATION;
    endpoint->counters[counter]++;
}

/* Whether this rank gives values for a chunk; else its packets are header-only. */
static int sa_gives(const struct sa_endpoint *endpoint, uint32_t kind) {
    return sa_givers(kind, ~0ull) >> endpoint->header.rank & 1u;
}

/* The stream gives up if a chunk's sum is wrong for good (V7), but calls that differ are named first (W12). */
static void sa_give_up_wrong(struct sa_endpoint *endpoint, struct sa_window *window) {
    uint64_t chunk = window->wrong - 1;
    if (!window->wrong || window->failed || sa_window_undescribed(window, chunk)) return;
    window->failed = 1;
    window->failure.event = (struct sa_event){
        .kind = window->wrong_kind,
        .stream = window->stream,
        .slot = window->first_slot + (uint32_t)(chunk % window->window),
        .version = (uint32_t)(chunk / window->window & 1),
        .chunk = chunk,
    };
    sa_add_event(endpoint, &window->failure);
}

/* The result of a slot's chunk is wrong: it is asked for again, once. */
static void sa_refuse(struct sa_endpoint *endpoint, struct sa_window *window, uint32_t offset) {
    endpoint->counters[SA_ENDPOINT_WRONG_SUMS]++;
    if (sa_window_ask_again(window, offset)) return;
    sa_window_wrong(window, window->slots[offset].chunk, SA_WRONG_SUM);
    sa_give_up_wrong(endpoint, window);
}

/* A small call holds results until it is known whether they count, and which of them are wrong (V8). */
static int sa_holds_wrong(struct sa_call *call, uint64_t position) {
    if (!call->undecided) return 0;
    call->small->wrong |= 1u << position;
    return 1;
}

/* Take one datagram if it is an awaited result; else count it (W5). */
static void sa_take(struct sa_endpoint *endpoint, const uint8_t *datagram, uint32_t size, int64_t now_ns,
                    uint32_t congested, uint32_t *touched) {
    struct sa_header header;
    memcpy(&header, datagram, sizeof header);
    uint32_t kind = SA_BE32(header.kind);
    /* The op may be either, RETRANSMISSION set or not. */
    if (sa_fault(kind, SA_BE16(header.elements), size) != SA_ABSORBED || !(kind & SA_RESULT) ||
        header.job != endpoint->header.job || header.generation != endpoint->header.generation ||
        (header.elements && header.elements != endpoint->header.elements) || header.stream >= endpoint->stream_count) {
        sa_count_rejected(endpoint, &header, size);
        return;
    }
    struct sa_window *window = &endpoint->windows[header.stream];
    uint32_t offset = (uint32_t)SA_BE16(header.slot) - window->first_slot; /* below first_slot: huge */
    struct sa_slot *slot = &window->slots[offset < window->window ? offset : 0];
    if (endpoint->partial.presence && header.elements && sa_route(kind) == SA_ROUTE_ALL && offset < window->window &&
        sa_partial_take(&endpoint->partial, window, offset, kind, SA_BE32(header.chunk), datagram + SA_HEADER_BYTES))
        return;
    if (offset >= window->window || slot->state == SA_IS_FREE || (uint32_t)slot->chunk != SA_BE32(header.chunk) ||
        (kind & SA_VERSION) != (slot->version ? SA_VERSION : 0) || (kind ^ slot->kind) & SA_SHARE ||
        (sa_route(kind) != SA_ROUTE_ALL && sa_gives(endpoint, kind) == (header.elements != 0))) {
        endpoint->counters[SA_ENDPOINT_DUPLICATES]++;
        if (offset < window->window) sa_window_answered_again(window, offset, SA_BE32(header.chunk));
        return;
    }
    struct sa_running *running = slot->running;
    const uint8_t *payload = header.elements ? datagram + SA_HEADER_BYTES : NULL;
    uint64_t position = slot->chunk - running->base;
    if (payload && endpoint->size_only) {
        running->call.form->pass(&running->call, position);
    } else if (payload) {
        payload = sa_call_unmasked(&running->call, window->stream, slot->chunk, slot->kind, payload);
        if (!sa_call_fits(&running->call, window->stream, slot->chunk, position, slot->kind, sa_gives(endpoint, kind), payload) &&
            !sa_holds_wrong(&running->call, position)) {
            sa_refuse(endpoint, window, offset);
            return;
        }
        running->call.form->write(&running->call, position, payload);
    }
    uint32_t marked = header.rank >> 7;
    window->to_mark += congested;
    endpoint->counters[SA_ENDPOINT_MARKED] += marked;
    if (window->partial) sa_partial_answered(&endpoint->partial, window, offset, kind, payload);
    sa_window_answered(window, offset, now_ns, marked);
    endpoint->counters[SA_ENDPOINT_RESULTS]++;
    if (!window->touched) endpoint->touched[(*touched)++] = window;
    window->touched = 1;
}

/* Compare what all workers say of a call; another one's ends the stream (W12). */
static void sa_judge(struct sa_endpoint *endpoint, struct sa_window *window, const struct sa_running *running) {
    const uint8_t *words = running->call.data, *local_words = words + sizeof(uint32_t[SA_WORDS]) * endpoint->rank;
    const size_t size = sizeof(uint32_t[SA_WORDS]);
    uint32_t other = endpoint->size_only ? endpoint->workers : 0;
    while (other < endpoint->workers && !memcmp(words + size * other, local_words, size)) other++;
    if (other == endpoint->workers) return;
    if (!window->failed) {
        uint64_t chunk = running->base;
        window->failure.event = (struct sa_event){
            .kind = SA_CALLS_DIFFER,
            .stream = window->stream,
            .slot = window->first_slot + (uint32_t)(chunk % window->window),
            .version = (uint32_t)(chunk / window->window & 1),
            .chunk = chunk,
            .rank = other,
        };
        memcpy(window->failure.event.remote_words, words + size * other, size);
        memcpy(window->failure.event.local_words, local_words, size);
        sa_add_event(endpoint, &window->failure);
    }
    window->failed = window->differs = 1;
}

/* Whether the data that was sent with a small call's head counts, or goes again (W16). */
static void sa_decide(struct sa_endpoint *endpoint, struct sa_window *window, const struct sa_running *head) {
    const int32_t *codes = (const int32_t *)head->call.data + SA_WORDS * endpoint->workers;
    int hit = 1; /* as it is of zeros */
    if (endpoint->size_only)
        head->describes->call.undecided = 0;
    else
        hit = sa_small_decide(&head->describes->call, &endpoint->predictions, codes, endpoint->verified.elements > 0);
    uint32_t wrong = hit && !endpoint->size_only ? head->describes->call.small->wrong : 0;
    endpoint->counters[SA_ENDPOINT_WRONG_SUMS] += (uint32_t)__builtin_popcount(wrong);
    if (wrong) {
        sa_window_wrong(window, head->describes->base + (uint32_t)__builtin_ctz(wrong), SA_WRONG_SUM_TOO_EARLY);
        window->differs = 1; /* the call has all its results, and isn't complete */
    }
    endpoint->counters[hit ? SA_ENDPOINT_PREDICTED : SA_ENDPOINT_REPEATED]++;
    sa_window_decided(window, head->describes);
}

/* Report calls, up to one that another worker has described differently. */
static void sa_complete(struct sa_endpoint *endpoint, struct sa_window *window) {
    struct sa_running *done;
    while (!window->differs && (done = sa_window_next_complete(window))) {
        if (!done->describes) {
            sa_add_event(endpoint, &done->waiting);
            continue;
        }
        sa_judge(endpoint, window, done);
        if (!window->differs && done->describes->call.small) sa_decide(endpoint, window, done);
        sa_free_call(endpoint, done);
    }
    sa_give_up_wrong(endpoint, window);
}

/* Give calls what came before they had sent it, and report. */
static void sa_take_early(struct sa_endpoint *endpoint, struct sa_window *window) {
    sa_partial_take_early(&endpoint->partial, window);
    sa_give_up_wrong(endpoint, window);
    sa_complete(endpoint, window);
    uint64_t early = window->running ? 0 : sa_window_first_free(window) - window->end;
    __atomic_store_n(&window->early_chunks, early, __ATOMIC_RELEASE);
}

SA_EXPORT uint64_t sa_endpoint_lacks(const struct sa_endpoint *endpoint, uint32_t *bytes) {
    uint64_t least = UINT64_MAX;
    *bytes = sa_endpoint_frame_bytes(endpoint);
    for (uint32_t stream = 0; stream < endpoint->stream_count; stream++)
        for (const struct sa_running *running = endpoint->windows[stream].running; running; running = running->after) {
            if (running->call.undecided || endpoint->partial.presence) return 0;
            if (running->describes) continue; /* its end is no event */
            if (running->missing < least) least = running->missing;
            if (running->call.routed && running->call.route != SA_ROUTE_ALL) *bytes = SA_HEADER_BYTES;
        }
    return least;
}

SA_EXPORT int sa_endpoint_submit(struct sa_endpoint *endpoint, const struct sa_submission *submission) {
    struct sa_running *running = sa_described_new(endpoint, submission), *description = NULL;
    if (!running) return -1;
    if ((submission->description[0] || running->call.small) &&
        !(description = sa_description_new(endpoint, submission, running))) {
        free(running);
        return -1;
    }
    if (description) sa_enqueue(endpoint, submission->stream, description);
    if (description || running->call.chunks) {
        sa_enqueue(endpoint, submission->stream, running);
    } else {
        endpoint->bytes += running->bytes;
        sa_add_event(endpoint, &running->waiting);
    }
    if (endpoint->partial.presence) sa_take_early(endpoint, &endpoint->windows[submission->stream]);
    return 0;
}

SA_EXPORT void sa_endpoint_receive(struct sa_endpoint *endpoint, const uint8_t *bundle, uint64_t rows, uint32_t size,
                                   int64_t now_ns, uint32_t congested) {
    if (size < SA_HEADER_BYTES) {
        endpoint->counters[SA_ENDPOINT_DROP_SHORT] += rows;
        return;
    }
    uint32_t touched = 0;
    for (uint64_t row = 0; row < rows; row++)
        sa_take(endpoint, bundle + row * size, size, now_ns, congested, &touched);
    for (uint32_t i = 0; i < touched; i++) {
        endpoint->touched[i]->touched = 0;
        sa_window_after_results(endpoint->touched[i]);
        sa_complete(endpoint, endpoint->touched[i]);
    }
    for (uint32_t stream = 0; stream < endpoint->stream_count && endpoint->partial.presence; stream++)
        if (endpoint->windows[stream].early) sa_take_early(endpoint, &endpoint->windows[stream]);
}

static void sa_give_up(struct sa_endpoint *endpoint, struct sa_window *window) {
    uint32_t offset = sa_window_first_unanswered(window);
    window->failed = 1;
    window->failure.event = (struct sa_event){
        .kind = SA_STREAM_FAILED,
        .stream = window->stream,
        .slot = window->first_slot + offset,
        .version = window->slots[offset].version,
        .chunk = window->slots[offset].chunk,
        .timeouts = window->timeouts,
    };
    sa_add_event(endpoint, &window->failure);
}

SA_EXPORT void sa_endpoint_handle_timer(struct sa_endpoint *endpoint, int64_t now_ns) {
    for (uint32_t stream = 0; stream < endpoint->stream_count; stream++) {
        struct sa_window *window = &endpoint->windows[stream];
        int64_t deadline_ns = sa_window_deadline_ns(window);
        if (deadline_ns < 0 || deadline_ns > now_ns) continue;
        window->timeouts++;
        endpoint->counters[SA_ENDPOINT_TIMEOUTS]++;
        if (window->timeouts > endpoint->retry_limit)
            sa_give_up(endpoint, window);
        else
            sa_window_time_out(window, now_ns);
    }
    if (endpoint->partial.presence) sa_partial_handle_timer(&endpoint->partial, now_ns);
}

/* ---- outputs */

SA_EXPORT int sa_endpoint_held(const struct sa_endpoint *endpoint, uint64_t call, uint8_t *held, uint64_t rows) {
    for (uint32_t stream = 0; stream < endpoint->stream_count; stream++)
        if (sa_window_held(&endpoint->windows[stream], call, held, rows)) return 0;
    return -1;
}

/* Write the frame of a slot's chunk (W1, W2). */
static void sa_build(struct sa_endpoint *endpoint, struct sa_window *window, uint32_t offset, uint32_t size,
                     uint8_t *frame) {
    const struct sa_slot *slot = &window->slots[offset];
    struct sa_running *running = slot->running;
    uint32_t kind = SA_BE32(slot->kind | (slot->version ? SA_VERSION : 0) | (slot->first ? 0 : SA_RETRANSMISSION));
    uint32_t chunk = SA_BE32((uint32_t)slot->chunk);
    uint16_t number = SA_BE16((uint16_t)(window->first_slot + offset));
    if (size > SA_HEADER_BYTES && !endpoint->size_only)
        sa_call_read(&running->call, window->stream, slot->chunk, slot->chunk - running->base, slot->kind, frame + SA_HEADER_BYTES);
    /* Field by field where it is sent from: a header put together elsewhere and copied whole would wait for all stores
       before it, the values' too, since the processor forwards no several stores to one load. */
    memcpy(frame, &endpoint->header, SA_HEADER_BYTES);
    memcpy(frame + offsetof(struct sa_header, kind), &kind, sizeof kind);
    memcpy(frame + offsetof(struct sa_header, slot), &number, sizeof number);
    frame[offsetof(struct sa_header, stream)] = (uint8_t)window->stream;
    if (window->to_mark && slot->first) {
        window->to_mark--;
        frame[offsetof(struct sa_header, rank)] |= SA_MARKED;
    }
    if (size == SA_HEADER_BYTES) memset(frame + offsetof(struct sa_header, elements), 0, sizeof(uint16_t));
    memcpy(frame + offsetof(struct sa_header, chunk), &chunk, sizeof chunk);
    endpoint->counters[slot->first ? SA_ENDPOINT_SENT : SA_ENDPOINT_RETRANSMITTED]++;
}

/* Round robin among streams of equal priority: those that sent in this bundle go behind those that did not. */
static void sa_rotate_equals(struct sa_endpoint *endpoint) {
    struct sa_window **order = endpoint->by_priority;
    uint32_t count = 0;
    for (uint32_t start = 0, end; start < endpoint->stream_count; start = end) {
        for (end = start; end < endpoint->stream_count && order[end]->priority == order[start]->priority; end++)
            if (!order[end]->in_bundle) endpoint->next_order[count++] = order[end];
        for (uint32_t i = start; i < end; i++)
            if (order[i]->in_bundle) {
                order[i]->in_bundle = 0;
                endpoint->next_order[count++] = order[i];
            }
    }
    endpoint->by_priority = endpoint->next_order;
    endpoint->next_order = order;
}

/* places: NULL: back to back from `out` on. */
SA_INLINE uint32_t sa_frames(struct sa_endpoint *endpoint, int64_t now_ns, uint32_t limit, uint32_t class,
                             uint8_t *const *places, uint8_t *out, uint32_t *size) {
    uint32_t count = 0;
    if (endpoint->partial.due_count)
        count = sa_partial_frames(&endpoint->partial, class, limit, &endpoint->header, places, out);
    const struct sa_window *cut = NULL; /* its next frame has another size: nothing less urgent may pass it */
    *size = count ? SA_HEADER_BYTES : endpoint->frame_bytes;
    if (count) return count;
    for (uint32_t i = 0; i < endpoint->stream_count && count < limit; i++) {
        struct sa_window *window = endpoint->by_priority[i];
        if (class != SA_ANY_CLASS && sa_class_of(window->priority) != class) continue;
        if (cut && window->priority > cut->priority) break;
        if (window->failed) continue;
        uint32_t offset;
        while (count < limit && (offset = sa_window_peek(window)) != SA_NO_SLOT) {
            uint32_t bytes = sa_gives(endpoint, window->slots[offset].kind) ? endpoint->frame_bytes : SA_HEADER_BYTES;
            if (count && bytes != *size) {
                cut = window;
                break;
            }
            *size = bytes;
            sa_window_sent(window, offset, now_ns);
            uint8_t *frame = places ? places[count] : out + (uint64_t)count * bytes;
            sa_build(endpoint, window, offset, bytes, frame);
            if (window->partial)
                sa_partial_sent(&endpoint->partial, window, offset, now_ns, frame + offsetof(struct sa_header, rank));
            window->in_bundle = 1;
            count++;
        }
    }
    if (count) sa_rotate_equals(endpoint);
    return count;
}

SA_EXPORT uint32_t sa_endpoint_frames_to_send(struct sa_endpoint *endpoint, int64_t now_ns, uint32_t limit,
                                              uint8_t *out, uint32_t *size) {
    return sa_frames(endpoint, now_ns, limit, SA_ANY_CLASS, NULL, out, size);
}

uint32_t sa_endpoint_frames_at(struct sa_endpoint *endpoint, int64_t now_ns, uint32_t limit, uint32_t class,
                               uint8_t *const *places, uint32_t *size) {
    return sa_frames(endpoint, now_ns, limit, class, places, NULL, size);
}

void sa_endpoint_leave_values(struct sa_endpoint *endpoint) { endpoint->size_only = 1; }

uint32_t sa_endpoint_has_event(const struct sa_endpoint *endpoint) { return endpoint->events != NULL; }

SA_EXPORT int64_t sa_endpoint_next_deadline_ns(const struct sa_endpoint *endpoint) {
    int64_t first_ns = sa_partial_deadline_ns(&endpoint->partial);
    for (uint32_t stream = 0; stream < endpoint->stream_count; stream++) {
        int64_t deadline_ns = sa_window_deadline_ns(&endpoint->windows[stream]);
        if (deadline_ns >= 0 && (first_ns < 0 || deadline_ns < first_ns)) first_ns = deadline_ns;
    }
    return first_ns;
}

SA_EXPORT const uint64_t *sa_endpoint_counters(const struct sa_endpoint *endpoint) { return endpoint->counters; }

SA_EXPORT uint64_t sa_endpoint_memory_bytes(const struct sa_endpoint *endpoint) {
    return endpoint->bytes + endpoint->partial.early_bytes;
}

uint32_t sa_endpoint_is_partial(const struct sa_endpoint *endpoint) { return endpoint->partial.presence > 0; }

SA_EXPORT uint64_t sa_endpoint_early_chunks(const struct sa_endpoint *endpoint, uint32_t stream) {
    return __atomic_load_n(&endpoint->windows[stream].early_chunks, __ATOMIC_ACQUIRE);
}

SA_EXPORT uint32_t sa_endpoint_frame_bytes(const struct sa_endpoint *endpoint) { return endpoint->frame_bytes; }

/* ---- memory */

/* Stable: equal streams keep their order. */
static void sa_sort_by_priority(struct sa_endpoint *endpoint) {
    struct sa_window **order = endpoint->by_priority;
    for (uint32_t i = 0; i < endpoint->stream_count; i++) {
        uint32_t at = i;
        for (; at && order[at - 1]->priority > endpoint->windows[i].priority; at--) order[at] = order[at - 1];
        order[at] = &endpoint->windows[i];
    }
}

SA_EXPORT void sa_endpoint_free(struct sa_endpoint *endpoint) {
    if (!endpoint) return;
    for (struct sa_waiting_event *waiting = endpoint->events, *next; waiting; waiting = next) {
        next = waiting->next;
        sa_forget(endpoint, waiting);
    }
    sa_verified_end(&endpoint->verified);
    if (endpoint->windows) sa_partial_end(&endpoint->partial, endpoint->windows, endpoint->stream_count);
    for (uint32_t stream = 0; endpoint->windows && stream < endpoint->stream_count; stream++)
        sa_window_end(&endpoint->windows[stream]);
    free(endpoint->windows);
    free(endpoint->by_priority);
    free(endpoint->next_order);
    free(endpoint->touched);
    free(endpoint->scratch);
    free(endpoint);
}

SA_EXPORT struct sa_endpoint *sa_endpoint_new(const struct sa_job *job, uint32_t rank, uint32_t wire_rank,
                                              const uint8_t *key) {
    struct sa_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) return NULL;
    uint32_t streams = job->stream_count;
    endpoint->header.job = SA_BE16((uint16_t)job->job_id);
    endpoint->header.generation = SA_BE32(job->generation);
    endpoint->header.elements = SA_BE16((uint16_t)job->elements);
    endpoint->header.rank = (uint8_t)wire_rank;
    endpoint->rank = rank;
    endpoint->frame_bytes = SA_HEADER_BYTES + 4 * job->elements;
    endpoint->elements = job->elements;
    endpoint->workers = job->workers;
    endpoint->stream_count = streams;
    endpoint->retry_limit = job->retry_limit;
    endpoint->plain = (uint32_t)sa_codec_number("plain");
    endpoint->fixed_point = (uint32_t)sa_codec_number("fixed_point");
    endpoint->wide = (uint32_t)sa_codec_number("wide_fixed_point");
    endpoint->bytes =
        sizeof *endpoint + 3ull * streams * sizeof(struct sa_window *) + job->elements * sizeof *endpoint->scratch;
    endpoint->windows = calloc(streams, sizeof *endpoint->windows);
    endpoint->by_priority = calloc(streams, sizeof *endpoint->by_priority);
    endpoint->next_order = calloc(streams, sizeof *endpoint->next_order);
    endpoint->touched = calloc(streams, sizeof *endpoint->touched);
    endpoint->scratch = calloc(job->elements, sizeof *endpoint->scratch);
    int missing = !endpoint->windows || !endpoint->by_priority || !endpoint->next_order || !endpoint->touched ||
                  !endpoint->scratch || sa_verified_init(&endpoint->verified, job, rank, key);
    if (endpoint->verified.elements) endpoint->bytes += sizeof(uint32_t) * SA_HASH_MEMORY(endpoint->verified.hash.count);
    if (endpoint->verified.unmasked) endpoint->bytes += sizeof(uint32_t) * job->elements;
    for (uint32_t stream = 0; stream < streams && !missing; stream++) {
        missing = sa_window_init(endpoint->windows, job, stream);
        endpoint->bytes += sa_window_bytes(&endpoint->windows[stream]);
        if (job->partial) endpoint->bytes += job->streams[stream].window * sizeof(struct sa_partial_slot);
    }
    if (job->partial && !missing)
        missing = sa_partial_init(&endpoint->partial, job, wire_rank, endpoint->windows, endpoint->counters);
    if (missing) {
        sa_endpoint_free(endpoint);
        return NULL;
    }
    sa_sort_by_priority(endpoint);
    return endpoint;
}

SA_EXPORT void sa_endpoint_start_at(struct sa_endpoint *endpoint, uint32_t stream, uint64_t chunk) {
    sa_window_start_at(&endpoint->windows[stream], chunk);
}
