/* The faults that an imperfect link does to a packet: loss, corruption, duplication, reordering, delay, jitter.

   Pure and seeded. The fate of packet `number` (0, 1, ...) of a port and direction is a function of (seed, port,
   direction, number) alone: the same on every machine, however packets are bundled, and whatever happens at other
   ports. Every kind of fault draws a random number of its own, so that adding one kind never changes another. The
   generator is SplitMix64 (Steele, Lea, Flood 2014), indexed by the packet's number. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Probabilities are numbers of 2^63: 0 never, 2^63 always. */
struct sa_impairment {
    uint64_t loss;
    uint64_t corrupt;
    uint64_t duplicate;
    uint64_t reorder;
    int64_t delay_ns;
    int64_t jitter_ns; /* each copy is late by delay_ns + 0 ... jitter_ns, uniform; so packets may be reordered */
    int64_t span_ns;   /* at least 1: a packet held back is late by 1 ... span_ns more, a second copy by 0 ... span_ns - 1 */
};

enum sa_mishap { SA_LOST = 1, SA_CORRUPTED = 2, SA_DUPLICATED = 4, SA_HELD_BACK = 8 };

struct sa_fate {
    uint32_t mishaps; /* enum sa_mishap, or-ed */
    uint32_t copies;  /* 0, 1 or 2 */
    int64_t late_ns[2];
};

/* Whether any fault or delay is configured. */
bool sa_impairs(const struct sa_impairment *impairment);

/* Returns the key of one port (its number) and direction (0 up, 1 down). */
uint64_t sa_impair_key(uint64_t seed, uint32_t port, uint32_t direction);

/* Corruption flips a burst of 1 to 15 bits. The receiver's UDP checksum (P5) finds every such burst: the 16-bit ones'-
   complement sum is the datagram modulo 65535, a burst changes it by ±2^s·D with D odd (its first bit) and |D| < 2^15,
   and that is never a multiple of 65535. So a corrupted packet is a dropped one, whatever its bytes. */
void sa_fate_of(const struct sa_impairment *impairment, uint64_t key, uint64_t number, struct sa_fate *fate);
