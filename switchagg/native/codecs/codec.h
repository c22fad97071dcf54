/* The contract of a codec, as switchagg/codecs/codec.py: values <-> the int32 elements of a chunk, row by row. A row is
   what one data chunk carries. Arrays and payloads may have any alignment. A codec is a file that defines its
   `struct sa_codec`, and a line in codec.c; it gives the same bits as its twin in Python. */
#pragma once

#include <stdint.h>

enum sa_dtype { SA_FLOAT32, SA_FLOAT64, SA_INT32, SA_INT64, SA_UINT8 };

/* How a value is rounded to a lane (F9, F11 to F13). SA_BF16 and SA_FP16 round it to that type first. */
enum sa_rounding { SA_NEAREST, SA_RANDOM, SA_SIGNS, SA_NOT_BELOW_SCALE, SA_FP16, SA_BF16 };

#define SA_CODE_LEAST (-32768)
#define SA_CODE_GREATEST 32767

static inline uint32_t sa_value_bytes(enum sa_dtype dtype) {
    return dtype == SA_UINT8 ? 1 : dtype == SA_FLOAT32 || dtype == SA_INT32 ? 4 : 8;
}

/* Parameters of a call that all its rows share. */
struct sa_coding {
    const struct sa_codec *codec;
    enum sa_dtype dtype;
    uint32_t elements; /* of a chunk */
    uint32_t width;    /* values in a row */
    uint32_t workers;
    uint32_t headroom; /* L: bits kept free so that no sum of `workers` integers overflows (F3) */
    uint32_t half;     /* h: a lane holds 0 to 2h (F9, F11 to F13) */
    uint32_t ranks;    /* how many contributions a decoded sum holds */
    uint32_t random;   /* lanes are rounded at random (F10), not to the nearest */
    uint64_t key;      /* seeds the random numbers: another one for each rank and call */
};

struct sa_codec {
    const char *name;
    uint32_t rounds;    /* rounds that agree on codes before the values: 0 or 1 */
    uint32_t lane_bits; /* bits per lane if words hold several values; else 0 */
    uint32_t levels;    /* of its lanes: h; 0: the greatest that so many workers allow */
    enum sa_rounding rounding;
    int32_t exponent;   /* of magnitudes, where the codec says it: 2^exponent is above all (F22) */
    uint32_t signed_words; /* honest sums never wrap as numbers in two's complement; else never as numbers without a sign (V3) */
    uint32_t (*width)(const struct sa_coding *coding); /* values in a row */

    /* Returns this rank's code of a row of `count` values; NULL without agreement. */
    int32_t (*prepare)(const struct sa_coding *coding, const uint8_t *values, uint64_t count);

    /* Write the 4 * elements payload bytes that carry `count` values, at most a row, as a row padded with zeros does.
       `number` is the row's in the call. `code` is the agreed one, if there is any; a row whose own code exceeds it gives unspecified values, but no
       undefined behaviour. */
    void (*encode)(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload);

    /* Convert the first `count` values of a result's payload. */
    void (*decode)(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload);
};

/* The number of a codec by its name, for sa_coding_begin; -1: only Python has it. */
int sa_codec_number(const char *name);

/* codec: its number; dtype: one that it takes, as enum sa_dtype. workers: as many as it can sum. The key is 0. */
void sa_coding_begin(struct sa_coding *coding, uint32_t codec, uint32_t dtype, uint32_t elements, uint32_t workers);

/* An agreed code as 16 bits, clamped to the range of codes. */
static inline int16_t sa_agreed(int32_t code) {
    if (code > SA_CODE_GREATEST) return SA_CODE_GREATEST;
    return (int16_t)(code < SA_CODE_LEAST ? SA_CODE_LEAST : code);
}

/* Whole arrays, for benchmarks and tests: the payload of row r lies at r * stride. */
void sa_codec_prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count, int32_t *codes);
void sa_codec_encode(const struct sa_coding *coding, const uint8_t *values, uint64_t count, const int16_t *codes,
                     uint8_t *out, uint64_t stride);
void sa_codec_decode(const struct sa_coding *coding, uint8_t *values, uint64_t count, const int16_t *codes,
                     const uint8_t *sums, uint64_t stride);
