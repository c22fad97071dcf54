/* A link is one direction of a cable: see emulation/sim/network/simulated_link.py. With classes it has a queue for each, the
   most urgent first (strict.c). Its oracle is tests/oracles/oracle_links.py. */
#ifndef SWITCHAGG_SIM_LINK_H
#define SWITCHAGG_SIM_LINK_H

#include "emulation/sim/native/sim.h"
#include "emulation/sim/native/tail.h"

typedef unsigned __int128 sim_units; /* of 1/rate ns */

enum sim_fault { SIM_DROP_QUEUE, SIM_DROP_FIRST, SIM_LOST, SIM_DUPLICATED, SIM_HELD_BACK, SIM_CORRUPTED, SIM_FAULTS };

/* ecn_bytes, drop_bytes: -1: none. words: of
   random.Random(seed), 624 and the place of the next; NULL: a link without faults. strict: whether it serves classes
   strictly. */
struct sim_link_facts {
    uint64_t rate_bps;
    int64_t delay_ns, queue_bytes, ecn_bytes, drop_bytes;
    double loss, duplicate, reorder, corrupt;
    const uint32_t *words;
    struct sim_tail_facts tail;
    uint32_t strict;
};

/* Most links lack these. tail: words is NULL without one. */
struct sim_faults {
    double loss, duplicate, reorder, corrupt;
    int64_t span_ns;
    struct sim_mersenne random;
    struct sim_tail tail;
};

/* What happens to frames at the end of a link: as of a lane. */
struct sim_arrival {
    sim_action act;
    void *object;
    sim_look look;
};

struct sim_link;
struct sim_strict;
struct sim_pausing;

/* Frames on their way to another partition, until the window is over. */
struct sim_crossings {
    struct sim_entry *entries;
    uint32_t count, room;
};

typedef int (*sim_queue_up)(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to);

/* The members that each frame needs lie in the first lines of cache. */
struct sim_link {
    struct sim_lane lane;
    int64_t free_ns; /* idle from free_ns + remainder / rate on */
    uint64_t remainder, rate_bps;
    int64_t delay_ns;
    uint64_t sent_frames, sent_bytes, delivered_frames, delivered_bytes; /* Python reads counters in place */
    struct {
        uint64_t remainder;
        int64_t ns;
    } costs[2]; /* of the sizes met last: mostly a full frame and a small one */
    uint32_t cost_bytes[2];
    struct sa_sim *sim, *end; /* the partitions where it begins and ends */
    int64_t calm_ns; /* a queue that it sends in less time refuses and marks nothing */
    uint32_t is_plain; /* without faults, tails, classes and pauses */
    uint32_t users;    /* addresses at the host it comes from */
    uint64_t marked_frames;
    uint64_t faults[SIM_FAULTS];
    sim_units queue_units, ecn_units, drop_units;
    struct sim_faults *random;
    sim_queue_up queue_up; /* of one that doesn't take frames in order: NULL of any other */
    struct sim_strict *strict;
    struct sim_pausing *pausing;
    struct sim_crossings crossings[2];
    struct sim_link *next_incoming; /* at the same end, of other partitions' */
    struct sim_arrival whole; /* of one that is cut: where frames arrive else; act is NULL of any other */
    struct sim_node node; /* only to be owned */
};

/* Queue a frame at ready_ns, framing included in its wire_bytes; 0: it was dropped. Takes over the hold on the body. */
int sim_link_send(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to);

/* Bytes queued and not yet sent, rounded up; and the first instant at which no more than so many are left. */
uint64_t sim_link_backlog_bytes(const struct sim_link *link, int64_t now_ns);
int64_t sim_link_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes);

/* The same of one class: without the frame on the wire; the earliest instant, if no other class sends anything. */
uint64_t sim_link_backlog_of(const struct sim_link *link, uint32_t kind);
int64_t sim_link_time_at_backlog_of_ns(const struct sim_link *link, uint32_t kind, uint64_t size_bytes);

/* For strict.c and pausing.c: what a frame adds to the time at which the wire is free, and its arrival. */
void sim_link_after(struct sim_link *link, int64_t *free_ns, uint64_t *remainder, uint32_t bytes);
void sim_link_deliver(struct sim_link *link, int64_t arrival_ns, struct sim_body *body, uint32_t sender, uint32_t to);
struct sim_strict *sim_strict_new(struct sim_link *link);
void sim_strict_free(struct sim_strict *strict);
uint64_t sim_pausing_backlog_bytes(const struct sim_link *link, int64_t now_ns);

/* Returns NULL without memory. act, object: what happens to frames that arrive. */
struct sim_link *sim_link_new(struct sa_sim *sim, const struct sim_link_facts *facts);
void sim_link_lead_to(struct sim_link *link, sim_action act, void *object, sim_look look);

/* Let it end in a partition, before it leads anywhere: by whose queue frames arrive. */
void sim_link_end_in(struct sim_link *link, struct sa_sim *end);

/* While it is cut, frames that would arrive are lost. Cutting it twice is cutting it once. */
void sim_link_cut(struct sim_link *link, uint32_t is_cut);

/* Fetch what sending on it will use: itself, then the place of the next frame. */
static inline void sim_link_look(const struct sim_link *link) {
    __builtin_prefetch(&link->lane, 1);
    __builtin_prefetch(&link->free_ns, 1);
    __builtin_prefetch(&link->costs, 1);
}

static inline void sim_link_look_at_place(const struct sim_link *link) {
    const struct sim_lane *lane = &link->lane;
    if (link->end == link->sim) __builtin_prefetch(&lane->ring[lane->tail & lane->mask], 1);
}

#endif
