#include "worker/fixedpoint.h"

#include <string.h>

#include "abi.h"
#include "rule/wire.h"

/* Payloads start 20 bytes into a frame, and arrays are the caller's: neither promises more than byte alignment. */
#define SA_ANYWHERE __attribute__((aligned(1), may_alias))
typedef float SA_ANYWHERE sa_float32_at;
typedef double SA_ANYWHERE sa_float64_at;
typedef uint32_t SA_ANYWHERE sa_uint32_at;
typedef int64_t SA_ANYWHERE sa_int64_at;

#define SA_LIMB_BITS 25u
#define SA_LIMB_MASK ((1u << SA_LIMB_BITS) - 1u)

uint32_t sa_headroom(uint32_t workers) {
    return workers > 1 ? 32u - (uint32_t)__builtin_clz(workers - 1) : 0;
}

/* ---- codes (F1) */

SA_VECTORISED static uint32_t sa_greatest32(const sa_uint32_at *bits, uint64_t count) {
    uint32_t greatest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t magnitude = bits[i] & 0x7fffffffu;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

/* Signed, since AVX2 compares no unsigned 64-bit numbers; the sign bit is cleared anyway. */
SA_VECTORISED static int64_t sa_greatest64(const sa_int64_at *bits, uint64_t count) {
    int64_t greatest = 0;
    for (uint64_t i = 0; i < count; i++) {
        int64_t magnitude = bits[i] & INT64_MAX;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

int32_t sa_row_code(enum sa_dtype dtype, const uint8_t *values, uint64_t count) {
    int32_t mantissa_bits = 23, special = 255, bias = 126;
    uint64_t bits;
    if (dtype == SA_FLOAT32) {
        bits = sa_greatest32((const sa_uint32_at *)values, count);
    } else {
        bits = (uint64_t)sa_greatest64((const sa_int64_at *)values, count);
        mantissa_bits = 52, special = 2047, bias = 1022;
    }
    int32_t field = (int32_t)(bits >> mantissa_bits);
    if (field == special) return SA_CODE_NONFINITE;
    if (bits == 0) return SA_CODE_ZERO;
    if (field) return field - bias;
    return 64 - __builtin_clzll(bits) - bias - mantissa_bits; /* subnormal: no implicit leading 1 */
}

int16_t sa_agreed(int32_t code) {
    if (code > SA_CODE_NONFINITE) return SA_CODE_NONFINITE;
    return (int16_t)(code < SA_CODE_ZERO ? SA_CODE_ZERO : code);
}

/* ---- floats (F2): two powers of two, as the whole one can lie outside the type; all products but the last are exact */

static int32_t sa_clip(int32_t value, int32_t limit) { return value > limit ? limit : value < -limit ? -limit : value; }

static float sa_power32(int32_t exponent) {
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static double sa_power64(int32_t exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static int32_t sa_shift(int16_t code, int32_t bits, int32_t limit) {
    return sa_clip(bits - (code == SA_CODE_ZERO ? 0 : code), 2 * limit);
}

/* The comparison keeps the conversion defined: out of range gives the least integer, as the processor's own does. */
SA_VECTORISED static void sa_quantise32(const sa_float32_at *restrict values, uint32_t count, float up, float more,
                                        sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) {
        float scaled = __builtin_rintf(values[i] * up * more);
        int32_t integer = __builtin_fabsf(scaled) < 0x1p31f ? (int32_t)scaled : INT32_MIN;
        out[i] = SA_BE32((uint32_t)integer);
    }
}

SA_VECTORISED static void sa_dequantise32(sa_float32_at *restrict values, uint32_t count, float down, float less,
                                          const sa_uint32_at *restrict sums) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t sum = sums[i];
        values[i] = (float)(int32_t)SA_BE32(sum) * down * less;
    }
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

SA_VECTORISED static void sa_quantise64(const sa_float64_at *restrict values, uint32_t count, double up, double more,
                                        sa_uint32_at *restrict out, uint32_t width) {
    for (uint32_t i = 0; i < count; i++) {
        double scaled = __builtin_rint(values[i] * up * more);
        int64_t integer = __builtin_fabs(scaled) < 0x1p63 ? (int64_t)scaled : INT64_MIN;
        sa_put_limbs((uint64_t)integer, out + i, width);
    }
}

SA_VECTORISED static void sa_dequantise64(sa_float64_at *restrict values, uint32_t count, double down, double less,
                                          const sa_uint32_at *restrict sums, uint32_t width) {
    for (uint32_t i = 0; i < count; i++) values[i] = (double)sa_take_limbs(sums + i, width) * down * less;
}

/* ---- integers (F6) */

SA_VECTORISED static void sa_swap32(const sa_uint32_at *restrict in, uint32_t count, sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = in[i];
        out[i] = SA_BE32(value);
    }
}

SA_VECTORISED static void sa_split64(const sa_int64_at *restrict values, uint32_t count, sa_uint32_at *restrict out,
                                     uint32_t width) {
    for (uint32_t i = 0; i < count; i++) sa_put_limbs((uint64_t)values[i], out + i, width);
}

SA_VECTORISED static void sa_join64(sa_int64_at *restrict values, uint32_t count, const sa_uint32_at *restrict sums,
                                    uint32_t width) {
    for (uint32_t i = 0; i < count; i++) values[i] = sa_take_limbs(sums + i, width);
}

/* ---- rows */

void sa_row_read(enum sa_dtype dtype, const uint8_t *values, uint32_t count, uint32_t elements, int16_t code,
                 uint32_t headroom, uint8_t *payload) {
    sa_uint32_at *out = (sa_uint32_at *)payload;
    uint32_t width = sa_row_width(dtype, elements);
    int blank = sa_is_float(dtype) && code == SA_CODE_NONFINITE;
    if (count < width || blank)
        memset(payload, 0, 4ull * elements);
    else if (sa_value_bytes(dtype) == 8)
        memset(payload + 4ull * SA_LIMBS * width, 0, 4ull * (elements - SA_LIMBS * width));
    if (blank) return;
    switch (dtype) {
        case SA_FLOAT32: {
            int32_t shift = sa_shift(code, 31 - (int32_t)headroom, 126), near = sa_clip(shift, 126);
            sa_quantise32((const sa_float32_at *)values, count, sa_power32(near), sa_power32(shift - near), out);
            return;
        }
        case SA_FLOAT64: {
            int32_t shift = sa_shift(code, 62 - (int32_t)headroom, 1022), near = sa_clip(shift, 1022);
            sa_quantise64((const sa_float64_at *)values, count, sa_power64(near), sa_power64(shift - near), out, width);
            return;
        }
        case SA_INT32: sa_swap32((const sa_uint32_at *)values, count, out); return;
        case SA_INT64: sa_split64((const sa_int64_at *)values, count, out, width); return;
    }
}

/* Every value is NaN (F4). */
static void sa_blank(enum sa_dtype dtype, uint8_t *values, uint32_t count) {
    uint32_t narrow = 0x7fc00000u;
    uint64_t wide = 0x7ff8000000000000u;
    uint32_t bytes = sa_value_bytes(dtype);
    for (uint32_t i = 0; i < count; i++)
        memcpy(values + (uint64_t)i * bytes, dtype == SA_FLOAT32 ? (void *)&narrow : (void *)&wide, bytes);
}

void sa_row_write(enum sa_dtype dtype, uint8_t *values, uint32_t count, uint32_t elements, int16_t code,
                  uint32_t headroom, const uint8_t *payload) {
    const sa_uint32_at *sums = (const sa_uint32_at *)payload;
    uint32_t width = sa_row_width(dtype, elements);
    if (sa_is_float(dtype) && code == SA_CODE_NONFINITE) {
        sa_blank(dtype, values, count);
        return;
    }
    switch (dtype) {
        case SA_FLOAT32: {
            int32_t shift = sa_shift(code, 31 - (int32_t)headroom, 126), near = sa_clip(shift, 126);
            sa_dequantise32((sa_float32_at *)values, count, sa_power32(-near), sa_power32(near - shift), sums);
            return;
        }
        case SA_FLOAT64: {
            int32_t shift = sa_shift(code, 62 - (int32_t)headroom, 1022), near = sa_clip(shift, 1022);
            sa_dequantise64((sa_float64_at *)values, count, sa_power64(-near), sa_power64(near - shift), sums, width);
            return;
        }
        case SA_INT32: sa_swap32(sums, count, (sa_uint32_at *)values); return;
        case SA_INT64: sa_join64((sa_int64_at *)values, count, sums, width); return;
    }
}

/* ---- whole arrays */

SA_EXPORT void sa_exponents(uint32_t dtype, const uint8_t *values, uint64_t count, uint32_t elements, int32_t *codes) {
    uint32_t width = sa_row_width(dtype, elements);
    for (uint64_t row = 0; row * width < count; row++) {
        uint64_t rest = count - row * width;
        codes[row] = sa_row_code(dtype, values + row * width * sa_value_bytes(dtype), rest < width ? rest : width);
    }
}

SA_EXPORT void sa_quantise(uint32_t dtype, const uint8_t *values, uint64_t count, uint32_t elements, uint32_t workers,
                           const int16_t *codes, uint8_t *out, uint64_t stride) {
    uint32_t width = sa_row_width(dtype, elements), headroom = sa_headroom(workers);
    for (uint64_t row = 0; row * width < count; row++) {
        uint64_t rest = count - row * width;
        sa_row_read(dtype, values + row * width * sa_value_bytes(dtype), rest < width ? (uint32_t)rest : width,
                    elements, codes[row], headroom, out + row * stride);
    }
}

SA_EXPORT void sa_dequantise(uint32_t dtype, uint8_t *values, uint64_t count, uint32_t elements, uint32_t workers,
                             const int16_t *codes, const uint8_t *sums, uint64_t stride) {
    uint32_t width = sa_row_width(dtype, elements), headroom = sa_headroom(workers);
    for (uint64_t row = 0; row * width < count; row++) {
        uint64_t rest = count - row * width;
        sa_row_write(dtype, values + row * width * sa_value_bytes(dtype), rest < width ? (uint32_t)rest : width,
                     elements, codes[row], headroom, sums + row * stride);
    }
}
