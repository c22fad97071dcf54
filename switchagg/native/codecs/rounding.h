/* Numbers to round at random with (F10), bit for bit as switchagg/codecs/rounding.py: a hash of a counter, so
   that a row which is encoded again, on whatever machine, is rounded as before. */
#pragma once

#include <stdint.h>

#include "switchagg/native/rule/wire.h"

#define SA_PAIRS 4u /* of lanes in a word: each has a sequence of its own */

/* A sequence of 32-bit numbers: the hash of start, start + 1, …, with `flipped` bits. */
struct sa_draws {
    uint32_t start, flipped;
};

static inline struct sa_draws sa_draws_of(uint64_t key, uint64_t sequence) {
    uint64_t mixed = key + (sequence + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    return (struct sa_draws){(uint32_t)mixed, (uint32_t)(mixed >> 32)};
}

SA_INLINE uint32_t sa_draw(struct sa_draws draws, uint32_t number) {
    uint32_t hash = draws.start + number;
    hash = (hash ^ hash >> 16) * 0x7feb352du;
    hash = (hash ^ hash >> 15) * 0x846ca68bu;
    return hash ^ hash >> 16 ^ draws.flipped;
}
