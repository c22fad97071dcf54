/* Unaligned access to values, and 64-bit integers in the int32 elements of a chunk, as three limbs (F6). */
#pragma once

#include <string.h>

#include "switchagg/native/codecs/codec.h"
#include "switchagg/native/rule/wire.h"

/* Payloads start 20 bytes into a frame, and arrays are the caller's: both may have any alignment. */
#define SA_ANYWHERE __attribute__((aligned(1), may_alias))
typedef float SA_ANYWHERE sa_float32_at;
typedef double SA_ANYWHERE sa_float64_at;
typedef uint32_t SA_ANYWHERE sa_uint32_at;
typedef int64_t SA_ANYWHERE sa_int64_at;

/* Floats by their bits, and a power of two. */
SA_INLINE uint32_t sa_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SA_INLINE float sa_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SA_INLINE double sa_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SA_INLINE double sa_power(int32_t exponent) { return sa_double((uint64_t)(exponent + 1023) << 52); }

#define SA_LIMBS 3u
#define SA_LIMB_BITS 25u
#define SA_LIMB_MASK ((1u << SA_LIMB_BITS) - 1u)

/* How far before their turn values are fetched: so many bytes or more, in whole rows. Rows are handled one by one with other
   work between them, which the processor's own prefetch doesn't span: without this they wait for memory. */
#define SA_BYTES_AHEAD 4320u
static inline uint64_t sa_ahead(const struct sa_coding *coding) {
    uint32_t row = coding->width * sa_value_bytes(coding->dtype);
    return (SA_BYTES_AHEAD + row - 1) / row * row;
}

/* Fetch the row that is so far ahead, of the array or past its end. */
static inline void sa_fetch_ahead(const struct sa_coding *coding, const uint8_t *values) {
    uint64_t bytes = (uint64_t)coding->width * sa_value_bytes(coding->dtype);
    uintptr_t row = (uintptr_t)values + sa_ahead(coding);
    for (uint64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(row + at));
}

/* A loop over one row handles so many values at a time: it fetches while it computes, so that neither waits for the
   other. */
#define SA_PART 32u
SA_INLINE void sa_fetch_part(const void *values, uint64_t ahead) {
    for (uint64_t at = 0; at < 4 * SA_PART; at += 64) __builtin_prefetch((const void *)((uintptr_t)values + ahead + at));
}

/* Values in a row of a codec with one value per word, of 32 bits, or of 64 in limbs (W3). */
static inline uint32_t sa_one_per_word(const struct sa_coding *coding) {
    return sa_value_bytes(coding->dtype) == 4 ? coding->elements : coding->elements / SA_LIMBS;
}

/* The largest of float32 values without their signs, as bits; fetches what is SA_BYTES_AHEAD. */
uint32_t sa_greatest_magnitude(const sa_uint32_at *bits, uint64_t count);

/* Zeros where such a row writes nothing. */
static inline void sa_pad(const struct sa_coding *coding, uint32_t count, uint8_t *payload) {
    if (count < coding->width)
        memset(payload, 0, 4ull * coding->elements);
    else if (sa_value_bytes(coding->dtype) == 8)
        memset(payload + 4ull * SA_LIMBS * count, 0, 4ull * (coding->elements - SA_LIMBS * count));
}

SA_INLINE void sa_put_limbs(uint64_t value, sa_uint32_at *restrict out, uint32_t width) {
    out[0] = SA_BE32((uint32_t)value & SA_LIMB_MASK);
    out[width] = SA_BE32((uint32_t)(value >> SA_LIMB_BITS) & SA_LIMB_MASK);
    out[2 * width] = SA_BE32((uint32_t)(value >> 2 * SA_LIMB_BITS));
}

SA_INLINE int64_t sa_take_limbs(const sa_uint32_at *restrict sums, uint32_t width) {
    uint32_t low = sums[0], middle = sums[width], high = sums[2 * width];
    uint64_t total = (uint64_t)SA_BE32(low) + ((uint64_t)SA_BE32(middle) << SA_LIMB_BITS) +
                     ((uint64_t)SA_BE32(high) << 2 * SA_LIMB_BITS);
    return (int64_t)total;
}
