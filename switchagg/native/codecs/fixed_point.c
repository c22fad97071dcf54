/* Floats with a shared exponent per row: F1 to F6, bit for bit as switchagg/codecs/fixed_point.py. */
#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

#define ZERO SA_CODE_LEAST         /* only zeros */
#define CLOSE_BITS 7 /* with more headroom a float32 below 2^bits is rounded to 2^bits */
#define NONFINITE SA_CODE_GREATEST /* NaN or an infinity (F4) */

/* ---- codes (F1) */

SA_INLINE uint32_t greater(uint32_t greatest, uint32_t bits) {
    uint32_t magnitude = bits & 0x7fffffffu;
    return magnitude > greatest ? magnitude : greatest;
}

SA_VECTORISED static uint32_t greatest32(const sa_uint32_at *bits, uint64_t count) {
    uint32_t greatest[SA_PART] = {0};
    for (; count >= SA_PART; count -= SA_PART, bits += SA_PART) {
        sa_fetch_part(bits, SA_BYTES_AHEAD);
        for (uint32_t i = 0; i < SA_PART; i++) greatest[i] = greater(greatest[i], bits[i]);
    }
    for (uint32_t i = 0; i < count; i++) greatest[0] = greater(greatest[0], bits[i]);
    for (uint32_t i = 1; i < SA_PART; i++) greatest[0] = greater(greatest[0], greatest[i]);
    return greatest[0];
}

/* Signed, since AVX2 compares no unsigned 64-bit numbers; the sign bit is cleared anyway. */
SA_VECTORISED static int64_t greatest64(const sa_int64_at *bits, uint64_t count) {
    int64_t greatest = 0;
    for (uint64_t i = 0; i < count; i++) {
        int64_t magnitude = bits[i] & INT64_MAX;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return greatest;
}

uint32_t sa_greatest_magnitude(const sa_uint32_at *bits, uint64_t count) {
    return greatest32(bits, count);
}

static int32_t prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    int32_t mantissa_bits = 23, special = 255, bias = 126;
    uint64_t bits;
    if (coding->dtype == SA_FLOAT32) {
        bits = sa_greatest_magnitude((const sa_uint32_at *)values, count);
    } else {
        sa_fetch_ahead(coding, values);
        bits = (uint64_t)greatest64((const sa_int64_at *)values, count);
        mantissa_bits = 52, special = 2047, bias = 1022;
    }
    int32_t field = (int32_t)(bits >> mantissa_bits);
    if (field == special) return NONFINITE;
    if (bits == 0) return ZERO;
    if (field) return field - bias;
    return 64 - __builtin_clzll(bits) - bias - mantissa_bits; /* subnormal: no implicit leading 1 */
}

/* ---- floats (F2): two powers of two, as the whole one can lie outside the type; all products but the last are exact */

static int32_t clip(int32_t value, int32_t limit) { return value > limit ? limit : value < -limit ? -limit : value; }

static float power32(int32_t exponent) { return sa_float((uint32_t)(exponent + 127) << 23); }

/* Splits the power of two for a row in two parts. */
struct shift {
    int32_t near, rest;
};

static struct shift shift_of(const struct sa_coding *coding, int16_t code, int32_t bits, int32_t limit) {
    int32_t shift = clip(bits - (int32_t)coding->headroom - (code == ZERO ? 0 : code), 2 * limit), near = clip(shift, limit);
    return (struct shift){near, shift - near};
}

/* The comparison keeps the conversion defined: out of range gives the least integer, as the processor's own does. */
SA_VECTORISED static void quantise32(const sa_float32_at *restrict values, uint32_t count, float up, float more,
                                     sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) {
        float scaled = __builtin_rintf(values[i] * up * more);
        int32_t integer = __builtin_fabsf(scaled) < 0x1p31f ? (int32_t)scaled : INT32_MIN;
        out[i] = SA_BE32((uint32_t)integer);
    }
}

/* Integers of a row may come out as 2^bits, by rounding, which so many workers can't sum (F3). */
SA_VECTORISED static void bound32(uint32_t count, uint32_t bits, sa_uint32_at *restrict out) {
    int32_t most = (int32_t)((1u << bits) - 1);
    for (uint32_t i = 0; i < count; i++) {
        int32_t integer = (int32_t)SA_BE32(out[i]);
        integer = integer > most ? most : integer < -most ? -most : integer;
        out[i] = SA_BE32((uint32_t)integer);
    }
}

SA_VECTORISED static void dequantise32(sa_float32_at *restrict values, uint32_t count, float down, float less,
                                       const sa_uint32_at *restrict sums) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t sum = sums[i];
        values[i] = (float)(int32_t)SA_BE32(sum) * down * less;
    }
}

SA_VECTORISED static void quantise64(const sa_float64_at *restrict values, uint32_t count, double up, double more,
                                     sa_uint32_at *restrict out, uint32_t width) {
    for (uint32_t i = 0; i < count; i++) {
        double scaled = __builtin_rint(values[i] * up * more);
        int64_t integer = __builtin_fabs(scaled) < 0x1p63 ? (int64_t)scaled : INT64_MIN;
        sa_put_limbs((uint64_t)integer, out + i, width);
    }
}

SA_VECTORISED static void dequantise64(sa_float64_at *restrict values, uint32_t count, double down, double less,
                                       const sa_uint32_at *restrict sums, uint32_t width) {
    for (uint32_t i = 0; i < count; i++) values[i] = (double)sa_take_limbs(sums + i, width) * down * less;
}

/* ---- rows */

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    (void)number;
    sa_uint32_at *out = (sa_uint32_at *)payload;
    sa_fetch_ahead(coding, values);
    if (code == NONFINITE) {
        memset(payload, 0, 4ull * coding->elements);
        return;
    }
    sa_pad(coding, count, payload);
    if (coding->dtype == SA_FLOAT32) {
        struct shift up = shift_of(coding, code, 31, 126);
        quantise32((const sa_float32_at *)values, count, power32(up.near), power32(up.rest), out);
        if (coding->headroom > CLOSE_BITS) bound32(count, 31 - coding->headroom, out);
    } else {
        struct shift up = shift_of(coding, code, 62, 1022);
        quantise64((const sa_float64_at *)values, count, sa_power(up.near), sa_power(up.rest), out, coding->width);
    }
}

/* Every value is NaN (F4). */
static void blank(enum sa_dtype dtype, uint8_t *values, uint32_t count) {
    uint32_t narrow = 0x7fc00000u;
    uint64_t wide = 0x7ff8000000000000u;
    uint32_t bytes = sa_value_bytes(dtype);
    for (uint32_t i = 0; i < count; i++)
        memcpy(values + (uint64_t)i * bytes, dtype == SA_FLOAT32 ? (void *)&narrow : (void *)&wide, bytes);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    const sa_uint32_at *sums = (const sa_uint32_at *)payload;
    sa_fetch_ahead(coding, values);
    if (code == NONFINITE) {
        blank(coding->dtype, values, count);
    } else if (coding->dtype == SA_FLOAT32) {
        struct shift up = shift_of(coding, code, 31, 126);
        dequantise32((sa_float32_at *)values, count, power32(-up.near), power32(-up.rest), sums);
    } else {
        struct shift up = shift_of(coding, code, 62, 1022);
        dequantise64((sa_float64_at *)values, count, sa_power(-up.near), sa_power(-up.rest), sums, coding->width);
    }
}

const struct sa_codec sa_fixed_point = {
    .name = "fixed_point",
    .rounds = 1,
    .signed_words = 1,
    .width = sa_one_per_word,
    .prepare = prepare,
    .encode = encode,
    .decode = decode,
};
