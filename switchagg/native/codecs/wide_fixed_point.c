/* float32 as fixed-point numbers of two words: F8, bit for bit as switchagg/codecs/wide_fixed_point.py.
   All arithmetic is exact but for two roundings, of a value to an integer and of a result to float32. */
#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

extern const struct sa_codec sa_fixed_point;

#define STEP 16
#define LEAST (-144) /* of the codes that F1 gives, rounded up, but for the two special ones */
#define GREATEST 128

static uint32_t width(const struct sa_coding *coding) { return coding->elements / 2; }

static int32_t prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    int32_t code = sa_fixed_point.prepare(coding, values, count);
    if (code == SA_CODE_LEAST || code == SA_CODE_GREATEST) return code;
    return (code + 256 + STEP - 1) / STEP * STEP - 256; /* rounded up: the quotient is of positive numbers */
}

/* k: bits of a low word. */
static int32_t low_bits(const struct sa_coding *coding) { return 31 - (int32_t)coding->headroom; }

static int32_t exponent_of(int16_t code) {
    if (code == SA_CODE_LEAST) return 0;
    return code < LEAST ? LEAST : code > GREATEST ? GREATEST : code;
}

/* The comparison keeps the conversion defined; it is false for NaN, too. */
SA_VECTORISED static void quantise(const uint8_t *restrict values, uint32_t count, double up, double unit,
                                   sa_uint32_at *restrict highs, sa_uint32_at *restrict lows) {
    double limit = unit * unit, part = 1 / unit;
    for (uint32_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, values + 4ull * i, sizeof value);
        double scaled = __builtin_rint((double)value * up);
        scaled = __builtin_fabs(scaled) < limit ? scaled : 0;
        double high = __builtin_floor(scaled * part);
        highs[i] = SA_BE32((uint32_t)(int32_t)high);
        lows[i] = SA_BE32((uint32_t)(int32_t)(scaled - high * unit));
    }
}

SA_VECTORISED static void dequantise_wide(sa_float32_at *restrict values, uint32_t count, double down, double unit,
                                          const sa_uint32_at *restrict highs, const sa_uint32_at *restrict lows) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t high = highs[i], low = lows[i];
        values[i] = (float)(((double)(int32_t)SA_BE32(high) * unit + (double)(int32_t)SA_BE32(low)) * down);
    }
}

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    (void)number;
    if (code == SA_CODE_GREATEST || count < coding->width || coding->elements & 1)
        memset(payload, 0, 4ull * coding->elements);
    if (code == SA_CODE_GREATEST) return;
    int32_t bits = low_bits(coding);
    quantise(values, count, sa_power(2 * bits - exponent_of(code)), sa_power(bits),
             (sa_uint32_at *)payload, (sa_uint32_at *)payload + coding->width);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    if (code == SA_CODE_GREATEST) {
        sa_fixed_point.decode(coding, values, count, code, payload); /* NaN (F4) */
        return;
    }
    int32_t bits = low_bits(coding);
    dequantise_wide((sa_float32_at *)values, count, sa_power(exponent_of(code) - 2 * bits), sa_power(bits),
                    (const sa_uint32_at *)payload, (const sa_uint32_at *)payload + coding->width);
}

const struct sa_codec sa_wide_fixed_point = {
    .name = "wide_fixed_point",
    .rounds = 1,
    .signed_words = 1,
    .width = width,
    .prepare = prepare,
    .encode = encode,
    .decode = decode,
};
