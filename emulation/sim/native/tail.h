/* The extra delay of a link by bursts of other traffic: `TailDelays` of tests/oracles/oracle_links.py, with the same draws. */
#ifndef SWITCHAGG_SIM_TAIL_H
#define SWITCHAGG_SIM_TAIL_H

#include "emulation/sim/native/mersenne.h"

/* burst_rate: one over the bursts' mean length in ns. sigma: of the delay's logarithm. words: as of `random.Random(seed)`. */
struct sim_tail_facts {
    double p50_ns, sigma, burst_rate;
    const uint32_t *words; /* NULL: no tail */
};

struct sim_tail {
    struct sim_tail_facts facts;
    int64_t until_ns, extra_ns; /* of this burst */
    int64_t last_ns;            /* arrival of the last frame */
    double second;                /* the second of two normal numbers that are made together */
    int has_second;
    struct sim_mersenne random;
};

void sim_tail_begin(struct sim_tail *tail, const struct sim_tail_facts *facts);

/* When a frame arrives that would at usual_ns: in order, and no closer to the one before than its frame_ns. */
int64_t sim_tail_arrival_ns(struct sim_tail *tail, int64_t usual_ns, int64_t frame_ns);

#endif
