#include "emulation/sim/native/events.h"

#include <stdlib.h>

#define RING_FIRST 16u
#define HEAP_FIRST 256u

static inline int before(int64_t time_ns, uint64_t sequence, int64_t other_ns, uint64_t other) {
    return time_ns < other_ns || (time_ns == other_ns && sequence < other);
}

/* ---- heads of lanes */

#define LANE_BITS SIM_LANE_BITS
#define NONE SIM_NO_MATCH

static inline sim_match match_of(int64_t time_ns, uint64_t sequence, const struct sim_lane *lane) {
    return (sim_match)(uint64_t)time_ns << 64 | sequence << LANE_BITS | lane->number;
}

/* A lane has another head. The matches on its way to the root don't depend on each other's places. */
static inline void play(struct sim_queue *queue, const struct sim_lane *lane, sim_match match) {
    sim_match *matches = queue->matches;
    uint32_t at = queue->leaves + lane->number;
    matches[at] = match;
    for (; at > 1; at /= 2) {
        sim_match other = matches[at ^ 1];
        match = other < match ? other : match;
        matches[at / 2] = match;
    }
}

int sim_queue_add_lane(struct sim_queue *queue, struct sim_lane *lane, int64_t least_ns) {
    if (queue->lane_count == queue->leaves) {
        uint32_t leaves = queue->leaves ? 2 * queue->leaves : 2;
        struct sim_place *places = realloc(queue->places, leaves * sizeof *places);
        if (places) queue->places = places;
        sim_match *matches = places ? realloc(queue->matches, 2 * leaves * sizeof *matches) : NULL;
        if (!matches) return -1;
        for (uint32_t i = 0; i < 2 * leaves; i++) matches[i] = NONE;
        queue->matches = matches;
        queue->leaves = leaves;
        for (uint32_t i = 0; i < queue->lane_count; i++) {
            const struct sim_lane *present = places[i].lane;
            if (present->head != present->tail) play(queue, present, match_of(places[i].head->time_ns, places[i].head->sequence, present));
        }
    }
    if (!queue->lane_count || least_ns < queue->least_ns) queue->least_ns = least_ns;
    lane->number = queue->lane_count;
    queue->places[queue->lane_count++] = (struct sim_place){lane, NULL};
    return 0;
}

static int grow(void **array, uint32_t *room, uint32_t first, size_t entry_bytes) {
    uint32_t more = *room ? 2 * *room : first;
    void *longer = realloc(*array, more * entry_bytes);
    if (!longer) return -1;
    *array = longer;
    *room = more;
    return 0;
}

static int ring_grow(struct sim_queue *queue, struct sim_lane *lane) {
    uint32_t count = lane->tail - lane->head, places = lane->ring ? 2 * (lane->mask + 1) : RING_FIRST;
    struct sim_entry *ring = aligned_alloc(64, places * sizeof *ring);
    if (!ring) return -1;
    for (uint32_t i = 0; i < count; i++) ring[i] = lane->ring[(lane->head + i) & lane->mask];
    free(lane->ring);
    lane->ring = ring;
    lane->mask = places - 1;
    lane->head = 0;
    lane->tail = count;
    queue->places[lane->number].head = ring;
    return 0;
}

void sim_queue_entry(struct sim_queue *queue, struct sim_lane *lane, const struct sim_entry *entry) {
    uint32_t count = lane->tail - lane->head;
    if ((count && entry->time_ns < lane->last_ns) || entry->time_ns <= queue->upcoming_ns) {
        sim_queue_event(queue, &(struct sim_event){*entry, lane->act, lane->object});
        return;
    }
    if ((!lane->ring || count > lane->mask) && ring_grow(queue, lane)) {
        queue->lacking = 1;
        return;
    }
    struct sim_entry *place = &lane->ring[lane->tail++ & lane->mask];
    *place = *entry;
    lane->last_ns = entry->time_ns;
    if (count) return;
    queue->places[lane->number].head = place;
    play(queue, lane, match_of(entry->time_ns, entry->sequence, lane));
}

/* ---- what is in no lane */

static inline int earlier(const struct sim_event *event, const struct sim_event *other) {
    return before(event->entry.time_ns, event->entry.sequence, other->entry.time_ns, other->entry.sequence);
}

void sim_queue_other(struct sim_queue *queue, int64_t time_ns, sim_action act, void *object, struct sim_body *body,
                     uint32_t sender, uint32_t to) {
    sim_queue_event(queue, &(struct sim_event){{time_ns, ++queue->sequence, body, sender, to}, act, object});
}

void sim_queue_event(struct sim_queue *queue, const struct sim_event *event) {
    if (queue->other_count == queue->other_room &&
        grow((void **)&queue->heap, &queue->other_room, HEAP_FIRST, sizeof *queue->heap)) {
        queue->lacking = 1;
        return;
    }
    uint32_t at = queue->other_count++;
    while (at) {
        uint32_t above = (at - 1) / 4;
        if (!earlier(event, &queue->heap[above])) break;
        queue->heap[at] = queue->heap[above];
        at = above;
    }
    queue->heap[at] = *event;
}

static void take_other(struct sim_queue *queue, struct sim_event *event) {
    struct sim_event *heap = queue->heap, last = heap[--queue->other_count];
    uint32_t count = queue->other_count, at = 0;
    *event = heap[0];
    for (uint32_t below = 1; below < count; below = 4 * at + 1) {
        uint32_t least = below, end = below + 4 < count ? below + 4 : count;
        for (uint32_t i = below + 1; i < end; i++)
            if (earlier(&heap[i], &heap[least])) least = i;
        if (!earlier(&heap[least], &last)) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = last;
}

/* ---- both */

/* Events are looked at in steps, so many events before they happen. */
static const uint32_t AWAY[SIM_STEPS] = {12, 8, 4};

static inline int has_upcoming(const struct sim_queue *queue) { return queue->upcoming_first != queue->upcoming_end; }

static inline struct sim_upcoming *upcoming(struct sim_queue *queue, uint32_t place) {
    return &queue->upcoming[place & (SIM_UPCOMING - 1)];
}

int sim_queue_is_empty(const struct sim_queue *queue) {
    return !queue->other_count && !has_upcoming(queue) && (!queue->matches || queue->matches[1] == NONE);
}

/* The least of all lanes' heads is upcoming. */
static void take_head(struct sim_queue *queue, sim_match match) {
    struct sim_place *place = &queue->places[(uint32_t)match & ((1u << LANE_BITS) - 1)];
    struct sim_lane *lane = place->lane;
    struct sim_upcoming *next_event = upcoming(queue, queue->upcoming_end++);
    *next_event = (struct sim_upcoming){*place->head, lane};
    queue->upcoming_ns = next_event->entry.time_ns;
    __builtin_prefetch(next_event->entry.body);
    place->head = &lane->ring[++lane->head & lane->mask];
    play(queue, lane, lane->head == lane->tail ? NONE : match_of(place->head->time_ns, place->head->sequence, lane));
    if (queue->matches[1] == NONE) return;
    const struct sim_place *next = &queue->places[(uint32_t)queue->matches[1] & ((1u << LANE_BITS) - 1)];
    __builtin_prefetch(next->lane);
    __builtin_prefetch(next->head);
    __builtin_prefetch(next->head + 1);
}

static inline void look(struct sim_queue *queue, uint32_t step) {
    if (queue->upcoming_end - queue->upcoming_first <= AWAY[step]) return;
    const struct sim_upcoming *event = upcoming(queue, queue->upcoming_first + AWAY[step]);
    if (event->lane->look) event->lane->look(event->lane->object, &event->entry, step);
}

static void look_ahead(struct sim_queue *queue, int64_t end_ns) {
    sim_match first;
    uint32_t most = queue->ahead ? queue->ahead : 1;
    while (queue->upcoming_end - queue->upcoming_first < most && (first = queue->matches[1]) != NONE &&
           (int64_t)(uint64_t)(first >> 64) < end_ns) {
        if (has_upcoming(queue)) {
            int64_t now_ns = upcoming(queue, queue->upcoming_first)->entry.time_ns;
            if (queue->other_count && queue->heap->entry.time_ns < now_ns) now_ns = queue->heap->entry.time_ns;
            if ((int64_t)(uint64_t)(first >> 64) > now_ns + queue->least_ns) break;
        }
        take_head(queue, first);
    }
    for (uint32_t step = 0; step < SIM_STEPS && most > 1; step++) look(queue, step);
}

int sim_queue_next(struct sim_queue *queue, int64_t end_ns, struct sim_event *event) {
    if (queue->matches) look_ahead(queue, end_ns);
    const struct sim_upcoming *first = upcoming(queue, queue->upcoming_first);
    if (queue->other_count &&
        (!has_upcoming(queue) || before(queue->heap->entry.time_ns, queue->heap->entry.sequence,
                                        first->entry.time_ns, first->entry.sequence))) {
        if (queue->heap->entry.time_ns >= end_ns) return 0;
        take_other(queue, event);
        return 1;
    }
    if (!has_upcoming(queue) || first->entry.time_ns >= end_ns) return 0;
    *event = (struct sim_event){first->entry, first->lane->act, first->lane->object};
    queue->upcoming_first++;
    return 1;
}

sim_match sim_queue_head(const struct sim_queue *queue) {
    sim_match head = queue->matches ? queue->matches[1] : NONE;
    const struct sim_entry *least[2];
    uint32_t count = 0;
    if (has_upcoming(queue)) least[count++] = &queue->upcoming[queue->upcoming_first & (SIM_UPCOMING - 1)].entry;
    if (queue->other_count) least[count++] = &queue->heap->entry;
    while (count--) {
        sim_match other = (sim_match)(uint64_t)least[count]->time_ns << 64 | least[count]->sequence << LANE_BITS;
        head = other < head ? other : head;
    }
    return head == NONE ? head : head >> LANE_BITS << LANE_BITS;
}

void sim_queue_free(struct sim_queue *queue) {
    free(queue->matches);
    free(queue->places);
    free(queue->heap);
}
