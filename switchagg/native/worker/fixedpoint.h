/* Floats and 64-bit integers <-> the int32 values of a chunk: F1 to F6 of PROTOCOL.md, bit for bit as
   switchagg/codecs/fixed_point.py. A row is what one data chunk carries: E values, or E / 3 of 64 bits. Arrays and payloads may
   have any alignment. */
#ifndef SWITCHAGG_FIXEDPOINT_H
#define SWITCHAGG_FIXEDPOINT_H

#include <stdint.h>

enum sa_dtype { SA_FLOAT32, SA_FLOAT64, SA_INT32, SA_INT64 };

#define SA_CODE_ZERO (-32768)     /* only zeros */
#define SA_CODE_NONFINITE 32767   /* NaN or an infinity (F4) */
#define SA_LIMBS 3u

static inline int sa_is_float(enum sa_dtype dtype) { return dtype == SA_FLOAT32 || dtype == SA_FLOAT64; }
static inline uint32_t sa_value_bytes(enum sa_dtype dtype) { return dtype == SA_FLOAT32 || dtype == SA_INT32 ? 4 : 8; }

/* Values in a row of E elements (W3). */
static inline uint32_t sa_row_width(enum sa_dtype dtype, uint32_t elements) {
    return sa_value_bytes(dtype) == 4 ? elements : elements / SA_LIMBS;
}

/* L: bits kept free so that no sum of `workers` integers overflows (F3). */
uint32_t sa_headroom(uint32_t workers);

/* Code of `count` floats (F1). */
int32_t sa_row_code(enum sa_dtype dtype, const uint8_t *values, uint64_t count);

/* An agreed code as it is kept; what lies outside the range of codes counts as its end. */
int16_t sa_agreed(int32_t code);

/* Write the 4 * elements payload bytes that carry `count` values, at most a row; the rest of them is zero. `code` is
   the agreed one, of floats only; a row whose own code exceeds it has values without meaning, but no fault. */
void sa_row_read(enum sa_dtype dtype, const uint8_t *values, uint32_t count, uint32_t elements, int16_t code,
                 uint32_t headroom, uint8_t *payload);

/* Take the first `count` values of a result's payload. */
void sa_row_write(enum sa_dtype dtype, uint8_t *values, uint32_t count, uint32_t elements, int16_t code,
                  uint32_t headroom, const uint8_t *payload);

/* Whole arrays, for benchmarks and tests: the payload of row r lies at r * stride; dtype as enum sa_dtype. */
void sa_exponents(uint32_t dtype, const uint8_t *values, uint64_t count, uint32_t elements, int32_t *codes);
void sa_quantise(uint32_t dtype, const uint8_t *values, uint64_t count, uint32_t elements, uint32_t workers,
                 const int16_t *codes, uint8_t *out, uint64_t stride);
void sa_dequantise(uint32_t dtype, uint8_t *values, uint64_t count, uint32_t elements, uint32_t workers,
                   const int16_t *codes, const uint8_t *sums, uint64_t stride);

#endif
