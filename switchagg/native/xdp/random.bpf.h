/* Random numbers in BPF programs: a seeded generator per CPU, so that the numbers drawn on a CPU are the same in every
   run. The kernel chooses which packets a CPU handles, and in which order. */
#pragma once

#include "switchagg/native/rule/wire.h"

/* True with a probability of `threshold` / 2^32. state: xorshift64*, not 0. Draws no number for a threshold of 0. */
SA_INLINE int sa_random_hit(uint64_t *state, uint32_t threshold) {
    if (!threshold) return 0;
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (uint32_t)((x * 0x2545f4914f6cdd1dull) >> 32) < threshold;
}
