#include "emulation/sim/native/mersenne.h"

#define HALF 397u
#define MATRIX 0x9908b0dfu

static uint32_t mixed(uint32_t word, uint32_t next) {
    uint32_t y = (word & 0x80000000u) | (next & 0x7fffffffu);
    return y >> 1 ^ (y & 1 ? MATRIX : 0);
}

static void refill(struct sim_mersenne *state) {
    uint32_t *words = state->words, i = 0;
    for (; i < SIM_MERSENNE_WORDS - HALF; i++) words[i] = words[i + HALF] ^ mixed(words[i], words[i + 1]);
    for (; i < SIM_MERSENNE_WORDS - 1; i++)
        words[i] = words[i + HALF - SIM_MERSENNE_WORDS] ^ mixed(words[i], words[i + 1]);
    words[i] = words[HALF - 1] ^ mixed(words[i], words[0]);
    state->at = 0;
}

static uint32_t word(struct sim_mersenne *state) {
    if (state->at >= SIM_MERSENNE_WORDS) refill(state);
    uint32_t y = state->words[state->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double sim_mersenne_next(struct sim_mersenne *state) {
    uint32_t high = word(state) >> 5, low = word(state) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}
