/* Exact sums (F19 to F21), bit for bit as switchagg/codecs/exact. */
#pragma once

#include <stdint.h>

#define SA_EXACT_GROUP 64u

/* What all groups of an array share. dtype: SA_FLOAT32 or SA_FLOAT64. divisor: of sums, 1 or the workers. The others say
   to which type results are rounded: its finite numbers are multiples of 2^least, below 2^greatest, of so many bits. */
struct sa_exact {
    uint32_t dtype;
    uint32_t workers;
    uint32_t divisor;
    int32_t precision;
    int32_t least;
    int32_t greatest;
};

/* This rank's codes of an array's groups. */
void sa_exact_codes(const struct sa_exact *exact, const uint8_t *values, uint64_t count, int32_t *upper, int32_t *lower);

/* How many words an array has under agreed codes. */
uint64_t sa_exact_words(const struct sa_exact *exact, uint64_t count, const int32_t *upper, const int32_t *lower);

/* Write the words of an array, which are so many. Values beyond the agreed codes give unspecified words. */
void sa_exact_encode(const struct sa_exact *exact, const uint8_t *values, uint64_t count, const int32_t *upper,
                     const int32_t *lower, uint32_t *words, uint64_t total);

/* Write the rounded sums. Words that no honest ranks could have give unspecified values. */
void sa_exact_decode(const struct sa_exact *exact, const uint32_t *words, uint64_t total, const int32_t *upper,
                     const int32_t *lower, uint8_t *values, uint64_t count);
