/* A binary heap of events by time; events of the same nanosecond in the order in which they were pushed. */
#pragma once

#include "transport/native/network/queue.h"

struct sa_timed {
    int64_t time_ns;
    uint64_t sequence;        /* set by push */
    struct sa_packet *packet; /* it arrives; NULL: a packet leaves the queue of this port and direction */
    uint32_t port;
    uint32_t direction;
};

struct sa_timeline {
    struct sa_timed *entries;
    uint32_t count;
    uint32_t capacity;
    uint64_t pushed;
};

/* Make room for `capacity` entries. Returns 0, or -1 without memory, and nothing has changed. */
int sa_timeline_reserve(struct sa_timeline *timeline, uint32_t capacity);
void sa_timeline_free(struct sa_timeline *timeline);

/* SA_NEVER if it is empty. */
static inline int64_t sa_timeline_next_ns(const struct sa_timeline *timeline) {
    return timeline->count ? timeline->entries[0].time_ns : SA_NEVER;
}

/* There must be room. */
void sa_timeline_push(struct sa_timeline *timeline, struct sa_timed entry);
/* The first entry; there must be one. */
struct sa_timed sa_timeline_pop(struct sa_timeline *timeline);

/* Remove all entries of a port, returning their packets to the pool. */
void sa_timeline_forget(struct sa_timeline *timeline, uint32_t port, struct sa_pool *pool);
