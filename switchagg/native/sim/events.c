#include "sim/events.h"

#include <stdlib.h>

#define RING_FIRST 16u
#define HEAP_FIRST 256u

static inline int before(int64_t time_ns, uint64_t sequence, int64_t other_ns, uint64_t other) {
    return time_ns < other_ns || (time_ns == other_ns && sequence < other);
}

/* ---- heads of lanes */

#define LANE_BITS 20u
#define NONE (~(sim_match)0)

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

int sim_queue_add_lane(struct sim_queue *queue, struct sim_lane *lane) {
    if (queue->lane_count == queue->leaves) {
        uint32_t leaves = queue->leaves ? 2 * queue->leaves : 2;
        struct sim_lane **lanes = realloc(queue->lanes, leaves * sizeof *lanes);
        if (lanes) queue->lanes = lanes;
        sim_match *matches = lanes ? realloc(queue->matches, 2 * leaves * sizeof *matches) : NULL;
        if (!matches) return -1;
        for (uint32_t i = 0; i < 2 * leaves; i++) matches[i] = NONE;
        queue->matches = matches;
        queue->leaves = leaves;
        for (uint32_t i = 0; i < queue->lane_count; i++) {
            struct sim_lane *each = queue->lanes[i];
            if (each->head == each->tail) continue;
            const struct sim_entry *head = &each->ring[each->head & each->mask];
            play(queue, each, match_of(head->time_ns, head->sequence, each));
        }
    }
    lane->number = queue->lane_count;
    queue->lanes[queue->lane_count++] = lane;
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

static int ring_grow(struct sim_lane *lane) {
    uint32_t count = lane->tail - lane->head, places = lane->ring ? 2 * (lane->mask + 1) : RING_FIRST;
    struct sim_entry *ring = malloc(places * sizeof *ring);
    if (!ring) return -1;
    for (uint32_t i = 0; i < count; i++) ring[i] = lane->ring[(lane->head + i) & lane->mask];
    free(lane->ring);
    lane->ring = ring;
    lane->mask = places - 1;
    lane->head = 0;
    lane->tail = count;
    return 0;
}

void sim_queue_lane(struct sim_queue *queue, struct sim_lane *lane, int64_t time_ns, struct sim_body *body,
                    uint32_t sender, uint32_t to) {
    uint32_t count = lane->tail - lane->head;
    if (count && time_ns < lane->last_ns) {
        sim_queue_other(queue, time_ns, lane->act, lane->object, body, sender, to);
        return;
    }
    if ((!lane->ring || count > lane->mask) && ring_grow(lane)) {
        queue->lacking = 1;
        return;
    }
    uint64_t sequence = ++queue->sequence;
    lane->ring[lane->tail++ & lane->mask] = (struct sim_entry){time_ns, sequence, body, sender, to};
    lane->last_ns = time_ns;
    if (!count) play(queue, lane, match_of(time_ns, sequence, lane));
}

/* ---- what is in no lane */

static inline int earlier(const struct sim_event *one, const struct sim_event *other) {
    return before(one->entry.time_ns, one->entry.sequence, other->entry.time_ns, other->entry.sequence);
}

void sim_queue_other(struct sim_queue *queue, int64_t time_ns, sim_action act, void *object, struct sim_body *body,
                     uint32_t sender, uint32_t to) {
    if (queue->other_count == queue->other_room &&
        grow((void **)&queue->others, &queue->other_room, HEAP_FIRST, sizeof *queue->others)) {
        queue->lacking = 1;
        return;
    }
    struct sim_event event = {{time_ns, ++queue->sequence, body, sender, to}, act, object};
    uint32_t at = queue->other_count++;
    while (at) {
        uint32_t above = (at - 1) / 4;
        if (!earlier(&event, &queue->others[above])) break;
        queue->others[at] = queue->others[above];
        at = above;
    }
    queue->others[at] = event;
}

static void take_other(struct sim_queue *queue, struct sim_event *event) {
    struct sim_event *others = queue->others, last = others[--queue->other_count];
    uint32_t count = queue->other_count, at = 0;
    *event = others[0];
    for (uint32_t below = 1; below < count; below = 4 * at + 1) {
        uint32_t least = below, end = below + 4 < count ? below + 4 : count;
        for (uint32_t i = below + 1; i < end; i++)
            if (earlier(&others[i], &others[least])) least = i;
        if (!earlier(&others[least], &last)) break;
        others[at] = others[least];
        at = least;
    }
    others[at] = last;
}

/* ---- both */

int sim_queue_is_empty(const struct sim_queue *queue) {
    return !queue->other_count && (!queue->matches || queue->matches[1] == NONE);
}

int sim_queue_next(struct sim_queue *queue, struct sim_event *event) {
    sim_match first = queue->matches ? queue->matches[1] : NONE;
    if (queue->other_count) {
        const struct sim_entry *other = &queue->others->entry;
        if (((sim_match)(uint64_t)other->time_ns << 64 | other->sequence << LANE_BITS) < first) {
            take_other(queue, event);
            return 1;
        }
    }
    if (first == NONE) return 0;
    struct sim_lane *lane = queue->lanes[(uint32_t)first & ((1u << LANE_BITS) - 1)];
    event->entry = lane->ring[lane->head++ & lane->mask];
    event->act = lane->act;
    event->object = lane->object;
    if (lane->head == lane->tail) {
        play(queue, lane, NONE);
        return 1;
    }
    const struct sim_entry *next = &lane->ring[lane->head & lane->mask];
    __builtin_prefetch(next->body);
    __builtin_prefetch(&lane->ring[(lane->head + 1) & lane->mask]);
    play(queue, lane, match_of(next->time_ns, next->sequence, lane));
    return 1;
}

void sim_queue_free(struct sim_queue *queue) {
    free(queue->matches);
    free(queue->lanes);
    free(queue->others);
}
