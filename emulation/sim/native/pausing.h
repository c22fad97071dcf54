/* Priority flow control (IEEE 802.1Qbb): links whose classes can be paused, and the buffers of the ports that pause them. Their
   oracle is tests/oracles/pausing.py. */
#ifndef SWITCHAGG_SIM_PAUSING_H
#define SWITCHAGG_SIM_PAUSING_H

#include "emulation/sim/native/link.h"
#include "emulation/sim/native/waiting.h"

/* classes: a bit for each that is lossless.
   red_most_bytes: -1: marks are the links' own. */
struct sim_pfc_facts {
    int64_t xoff_bytes, xon_bytes, red_least_bytes, red_most_bytes;
    double red_chance;
    uint32_t classes, strict;
};

struct sim_pfc;

struct sim_pausing {
    struct sim_node node; /* only to be owned */
    /* These: Python reads them in place. */
    uint64_t pauses, most_bytes;
    int64_t paused_ns;                    /* of pauses that are over, in all classes */
    int64_t paused_since_ns[SIM_CLASSES]; /* -1: it isn't */
    struct sim_link *link;
    struct sim_pfc *pfc;
    struct sim_deque queues[SIM_CLASSES];
    struct sim_deque later; /* what a switch's latency still holds */
    uint64_t queued[SIM_CLASSES];
    uint64_t served[SIM_CLASSES]; /* what a class's next frame begins at, in bytes … */
    uint64_t turn;                /* … and what the last that was served began at */
    struct sim_waiting on_wire;
    uint32_t is_serving;
    struct sim_mersenne random;
};

/* A pause frame, or one that ends it: the same ones again and again. */
struct sim_signal {
    struct sim_pausing *to;
    uint32_t kind, on;
};

struct sim_ingress {
    struct sim_node node; /* only to be owned */
    /* These: Python reads them in place. */
    uint64_t most_bytes, dropped;
    uint64_t held_bytes[SIM_CLASSES], released[SIM_CLASSES];
    struct sim_pausing *link, *reverse;
    uint64_t room_bytes;
    sim_action act; /* of the switch */
    void *object;
    uint8_t pauses[SIM_CLASSES];
    struct sim_signal signals[SIM_CLASSES][2];
};

SA_EXPORT struct sim_pfc *sa_sim_pfc(struct sa_sim *sim, const struct sim_pfc_facts *facts);

/* Let a link's classes be paused. words: of the random numbers of its marks. Returns NULL without memory. */
SA_EXPORT struct sim_pausing *sa_sim_pausing(struct sim_link *link, struct sim_pfc *pfc, const uint32_t *words);

/* The buffer where a link comes in at a switch, to which it leads already; reverse: on which pauses travel. */
SA_EXPORT struct sim_ingress *sa_sim_ingress(struct sim_pausing *link, struct sim_pausing *reverse,
                                             uint64_t room_bytes);

/* What frames of a host in Python are sent as: notice(host) each time that one of them has left the host's queue, or was
   dropped there. Returns NULL without memory. */
SA_EXPORT struct sim_charge *sa_sim_backlog(struct sim_pfc *pfc, uint32_t host);

/* Let frames that are sent from now on be of this charge; returns that of those before. */
struct sim_charge *sim_pausing_charge(struct sim_link *link, struct sim_charge *charge);

/* Whether frames of a class that came in by a port wait for a link. */
SA_EXPORT uint32_t sa_sim_waits_for(const struct sim_pausing *pausing, const struct sim_ingress *ingress, uint32_t kind);

#endif
