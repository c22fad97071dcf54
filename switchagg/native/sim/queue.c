#include "sim/queue.h"

#include <stdlib.h>

#define RING_FIRST 64u
#define HEAP_FIRST 256u

static inline int before(int64_t time_ns, uint64_t sequence, int64_t other_ns, uint64_t other) {
    return time_ns < other_ns || (time_ns == other_ns && sequence < other);
}

/* ---- heads of lanes */

static void heads_up(struct sim_queue *queue, uint32_t at, struct sim_head head) {
    while (at) {
        uint32_t above = (at - 1) / 4;
        const struct sim_head *other = &queue->heads[above];
        if (!before(head.time_ns, head.sequence, other->time_ns, other->sequence)) break;
        queue->heads[at] = *other;
        at = above;
    }
    queue->heads[at] = head;
}

/* Put a head where the first one was. */
static inline void heads_down(struct sim_queue *queue, struct sim_head head) {
    struct sim_head *heads = queue->heads;
    uint32_t count = queue->head_count, at = 0;
    for (uint32_t below = 1; below < count; below = 4 * at + 1) {
        uint32_t least = below, end = below + 4 < count ? below + 4 : count;
        for (uint32_t i = below + 1; i < end; i++)
            if (before(heads[i].time_ns, heads[i].sequence, heads[least].time_ns, heads[least].sequence)) least = i;
        if (!before(heads[least].time_ns, heads[least].sequence, head.time_ns, head.sequence)) break;
        heads[at] = heads[least];
        at = least;
    }
    heads[at] = head;
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
    if (count) return;
    if (queue->head_count == queue->head_room &&
        grow((void **)&queue->heads, &queue->head_room, HEAP_FIRST, sizeof *queue->heads)) {
        queue->lacking = 1;
        return;
    }
    heads_up(queue, queue->head_count++, (struct sim_head){time_ns, sequence, lane});
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

int sim_queue_next(struct sim_queue *queue, struct sim_event *event) {
    const struct sim_head *first = queue->heads;
    if (queue->other_count && (!queue->head_count ||
                               before(queue->others->entry.time_ns, queue->others->entry.sequence, first->time_ns,
                                      first->sequence))) {
        take_other(queue, event);
        return 1;
    }
    if (!queue->head_count) return 0;
    struct sim_lane *lane = first->lane;
    event->entry = lane->ring[lane->head++ & lane->mask];
    event->act = lane->act;
    event->object = lane->object;
    if (lane->head != lane->tail) {
        const struct sim_entry *next = &lane->ring[lane->head & lane->mask];
        __builtin_prefetch(next->body);
        heads_down(queue, (struct sim_head){next->time_ns, next->sequence, lane});
    } else if (--queue->head_count) {
        heads_down(queue, queue->heads[queue->head_count]);
    }
    return 1;
}

void sim_queue_free(struct sim_queue *queue) {
    free(queue->heads);
    free(queue->others);
}
