/* The order of events, that of Python's heap of (time, sequence number): a lane for each link, whose frames arrive one
   after the other, a tree of matches between the lanes' heads, and a 4-ary heap of what is in no lane: timers, and
   frames out of order. A counter numbers all of them as they are scheduled, so that events of one instant happen in
   that order. Where a simulation has partitions (partitions.h), each has a queue and a counter, and an event has the number
   of the partition that scheduled it in its sequence number's upper bits.

   In a simulation of many links (`ahead`) the next few frames are taken out of their lanes ahead of time, as far as no new one can come before them, and what they
   will need is fetched into the cache meanwhile: with a thousand hosts nothing of one is there by itself. */
#ifndef SWITCHAGG_SIM_EVENTS_H
#define SWITCHAGG_SIM_EVENTS_H

#include "emulation/sim/native/body.h"

/* The function that happens at an event. It takes over the hold on the body, which is NULL of a timer. */
typedef void (*sim_action)(void *object, struct sim_body *body, uint32_t sender, uint32_t to);

struct sim_entry {
    int64_t time_ns;
    uint64_t sequence;
    struct sim_body *body;
    uint32_t sender, to;
};

/* Fetch what a frame's arrival will use, in SIM_STEPS: what is known by its address, then where that leads to. */
typedef void (*sim_look)(void *object, const struct sim_entry *entry, uint32_t step);

struct sim_lane {
    struct sim_entry *ring;
    uint32_t mask, head, tail; /* the ring has mask + 1 places, or none yet */
    uint32_t number;
    int64_t last_ns; /* of the newest entry */
    sim_action act;
    void *object;
    sim_look look; /* or NULL */
} __attribute__((aligned(64)));

/* A lane, and its first entry: side by side, so that both can be fetched at once. */
struct sim_place {
    struct sim_lane *lane;
    const struct sim_entry *head;
};

#define SIM_UPCOMING 16u /* a power of two */
#define SIM_FEW_LANES 255u /* what so many links need stays in the cache by itself: looking ahead would only cost */
#define SIM_STEPS 3u

struct sim_upcoming {
    struct sim_entry entry;
    const struct sim_lane *lane;
};

struct sim_event {
    struct sim_entry entry;
    sim_action act;
    void *object;
};

/* A lane's head in one word, so that the lesser of two is found without a branch: time, sequence number, lane, from the
   most significant bits on; all ones: the lane is empty. */
typedef unsigned __int128 sim_match;

struct sim_queue {
    uint64_t sequence;
    sim_match *matches; /* matches[1] is the least of all; that of lane i is at leaves + i */
    struct sim_place *places;
    struct sim_event *heap;
    uint32_t lane_count, leaves, other_count, other_room;
    int lacking; /* memory, and so an event */
    uint32_t upcoming_first, upcoming_end; /* in order; places by the lower bits */
    int64_t upcoming_ns;                   /* of the last that was taken from a lane: what comes before goes to the others */
    int64_t least_ns;                      /* no frame arrives sooner than so long after it was sent */
    uint32_t ahead;                        /* so many are upcoming at most, and one, if it is 0 */
    struct sim_upcoming upcoming[SIM_UPCOMING];
};

/* least_ns: no frame arrives in it sooner than so long after it was sent. Returns 0, or -1 without memory. */
int sim_queue_add_lane(struct sim_queue *queue, struct sim_lane *lane, int64_t least_ns);

/* In a lane, after those that are there: a frame that would arrive before the last of them goes beside it. The entry's
   sequence number is given: it is of another partition. */
void sim_queue_entry(struct sim_queue *queue, struct sim_lane *lane, const struct sim_entry *entry);

/* The same of this queue's next sequence number. */
static inline void sim_queue_lane(struct sim_queue *queue, struct sim_lane *lane, int64_t time_ns, struct sim_body *body,
                                  uint32_t sender, uint32_t to) {
    struct sim_entry entry = {time_ns, ++queue->sequence, body, sender, to};
    sim_queue_entry(queue, lane, &entry);
}

void sim_queue_event(struct sim_queue *queue, const struct sim_event *event);
void sim_queue_other(struct sim_queue *queue, int64_t time_ns, sim_action act, void *object, struct sim_body *body,
                     uint32_t sender, uint32_t to);

/* Take the next event, if it is before end_ns; 0: there is none. */
int sim_queue_next(struct sim_queue *queue, int64_t end_ns, struct sim_event *event);

#define SIM_LANE_BITS 20u
#define SIM_NO_MATCH (~(sim_match)0)

/* The time and sequence number of the next event, in a match whose other bits are 0; SIM_NO_MATCH: there is none. */
sim_match sim_queue_head(const struct sim_queue *queue);

int sim_queue_is_empty(const struct sim_queue *queue);

void sim_queue_free(struct sim_queue *queue);

#endif
