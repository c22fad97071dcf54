/* See impair.h. */
#include "transport/native/network/impair.h"

#include "switchagg/native/abi.h"

#define GOLDEN 0x9e3779b97f4a7c15ull

/* Index of the random number that decides each fault. Append new ones: seeded results then stay as they were. */
enum draw { DRAW_LOSS = 1, DRAW_CORRUPT, DRAW_DUPLICATE, DRAW_REORDER, DRAW_COPY, DRAW_HOLD, DRAW_JITTER, DRAW_COPY_JITTER };

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static uint64_t draw(uint64_t packet, enum draw which) { return mix(packet + (uint64_t)which * GOLDEN); }

static bool happens(uint64_t packet, enum draw which, uint64_t probability) {
    return probability && draw(packet, which) >> 1 < probability;
}

/* Draws a number of 0 ... below - 1. The bias, below / 2^64, is negligible; the remainder is the same on every
   machine. */
static int64_t uniform(uint64_t packet, enum draw which, int64_t below) {
    return (int64_t)(draw(packet, which) % (uint64_t)below);
}

SA_EXPORT bool sa_impairs(const struct sa_impairment *impairment) {
    return impairment->loss || impairment->corrupt || impairment->duplicate || impairment->reorder ||
           impairment->delay_ns || impairment->jitter_ns;
}

SA_EXPORT uint64_t sa_impair_key(uint64_t seed, uint32_t port, uint32_t direction) {
    return mix(mix(seed + GOLDEN) + ((uint64_t)port << 1 | direction));
}

SA_EXPORT void sa_fate_of(const struct sa_impairment *impairment, uint64_t key, uint64_t number,
                          struct sa_fate *fate) {
    uint64_t packet = mix(key + number * GOLDEN);
    *fate = (struct sa_fate){0};
    if (happens(packet, DRAW_LOSS, impairment->loss)) {
        fate->mishaps = SA_LOST;
        return;
    }
    if (happens(packet, DRAW_CORRUPT, impairment->corrupt)) {
        fate->mishaps = SA_CORRUPTED;
        return;
    }
    fate->copies = 1;
    fate->late_ns[0] = fate->late_ns[1] = impairment->delay_ns;
    if (impairment->jitter_ns) {
        fate->late_ns[0] += uniform(packet, DRAW_JITTER, impairment->jitter_ns + 1);
        fate->late_ns[1] += uniform(packet, DRAW_COPY_JITTER, impairment->jitter_ns + 1);
    }
    if (happens(packet, DRAW_DUPLICATE, impairment->duplicate)) {
        fate->mishaps |= SA_DUPLICATED;
        fate->copies = 2;
        fate->late_ns[1] += uniform(packet, DRAW_COPY, impairment->span_ns);
    }
    if (happens(packet, DRAW_REORDER, impairment->reorder)) {
        fate->mishaps |= SA_HELD_BACK;
        fate->late_ns[0] += 1 + uniform(packet, DRAW_HOLD, impairment->span_ns);
    }
}
