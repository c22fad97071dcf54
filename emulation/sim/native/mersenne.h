/* CPython's `random.Random`: MT19937, from a state that Python seeded, and `random()`. */
#ifndef SWITCHAGG_SIM_MERSENNE_H
#define SWITCHAGG_SIM_MERSENNE_H

#include <stdint.h>

#define SIM_MERSENNE_WORDS 624u

struct sim_mersenne {
    uint32_t words[SIM_MERSENNE_WORDS];
    uint32_t at;
};

/* Draws 0 <= x < 1, with 53 bits. */
double sim_mersenne_next(struct sim_mersenne *state);

#endif
