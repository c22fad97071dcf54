/* Queues of frames that wait for a link which doesn't take them in the order of their arrival alone. */
#ifndef SWITCHAGG_SIM_WAITING_H
#define SWITCHAGG_SIM_WAITING_H

#include <stdlib.h>

#include "emulation/sim/native/sim.h"

#define SIM_PLACES_FIRST 32u

struct sim_charge; /* pausing.h */

struct sim_waiting {
    struct sim_body *body;
    struct sim_charge *charge; /* NULL, where ports don't pause links */
    uint32_t sender, to;
};

struct sim_deque {
    struct sim_waiting *places;
    uint32_t mask, head, count;
};

static inline int sim_deque_grow(struct sim_deque *deque) {
    uint32_t places = deque->places ? 2 * (deque->mask + 1) : SIM_PLACES_FIRST;
    struct sim_waiting *longer = malloc(places * sizeof *longer);
    if (!longer) return -1;
    for (uint32_t i = 0; i < deque->count; i++) longer[i] = deque->places[(deque->head + i) & deque->mask];
    free(deque->places);
    *deque = (struct sim_deque){longer, places - 1, 0, deque->count};
    return 0;
}

/* Queues it behind all; the run ends if there is no memory. */
static inline void sim_deque_put(struct sa_sim *sim, struct sim_deque *deque, struct sim_waiting waiting) {
    if ((!deque->places || deque->count > deque->mask) && sim_deque_grow(deque)) {
        sim->queue.lacking = 1;
        return;
    }
    deque->places[(deque->head + deque->count++) & deque->mask] = waiting;
}

/* The first of those that are there. */
static inline struct sim_waiting sim_deque_take(struct sim_deque *deque) {
    deque->count--;
    return deque->places[deque->head++ & deque->mask];
}

#endif
