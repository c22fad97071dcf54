/* float32 as biased integers, several in a word: F9 and F10 of PROTOCOL.md, bit for bit as switchagg/codecs/lanes.py.
   A word is summed up lane by lane in the payload, and brought to the network's byte order last. */
#include "abi.h"
#include "codecs/limbs.h"
#include "codecs/rounding.h"

extern const struct sa_codec sa_fixed_point;

#define LEAST_SCALE (27 << 7)  /* 2^-100, as the upper half of a float32: no factor is subnormal because of it */
#define GREATEST_SCALE 0x7f7f /* the largest finite one */
#define FRACTION 16           /* bits of a value that a random number decides on */

/* ---- codes */

static int32_t prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    sa_fetch_ahead(coding, values);
    uint32_t bits = sa_greatest_magnitude((const sa_uint32_at *)values, count);
    if (bits >= 0x7f800000u) return SA_CODE_GREATEST;
    int32_t code = (int32_t)((bits + 0xffffu) >> 16);
    return code < GREATEST_SCALE ? code : GREATEST_SCALE;
}

static double scale_of(int16_t code) {
    uint32_t bits = (uint32_t)(code < LEAST_SCALE ? LEAST_SCALE : code > GREATEST_SCALE ? GREATEST_SCALE : code) << 16;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* ---- rows */

/* What takes values to integers of at most `limit`. */
struct scaling {
    float up, limit;
};

/* To an integer, ties to even. */
#ifdef __clang__
#define NEAREST(value) ((int32_t)__builtin_rintf(value))
#else
#define NEAREST(value) __builtin_irintf(value) /* takes one instruction of it, not two */
#endif

/* Comparisons, so that NaN has an integer, too. */
SA_INLINE uint32_t quantised(float value, struct scaling scaling) {
    float scaled = value * scaling.up;
    scaled = scaled < scaling.limit ? scaled : scaling.limit;
    scaled = scaled > -scaling.limit ? scaled : -scaling.limit;
    return (uint32_t)NEAREST(scaled);
}

SA_VECTORISED static void add_nearest(const sa_float32_at *restrict values, uint32_t count, struct scaling scaling,
                                      uint32_t shift, sa_uint32_at *restrict words) {
    for (uint32_t i = 0; i < count; i++) words[i] += quantised(values[i], scaling) << shift;
}

/* The integer part of a value with FRACTION bits more, and a random number below 1. */
SA_INLINE uint32_t rounded(float value, struct scaling scaling, uint32_t draw) {
    return (uint32_t)((int32_t)(quantised(value, scaling) + draw) >> FRACTION);
}

/* Two lanes: `count` values of the first, of which `both` words have one in the second, too. */
SA_VECTORISED static void add_random(const sa_float32_at *restrict values, const sa_float32_at *restrict second,
                                     uint32_t count, uint32_t both, struct scaling scaling, struct sa_draws draws,
                                     uint32_t shift, uint32_t bits, sa_uint32_at *restrict words) {
    for (uint32_t i = 0; i < both; i++) {
        uint32_t draw = sa_draw(draws, i);
        words[i] += (rounded(values[i], scaling, draw & 0xffffu) + (rounded(second[i], scaling, draw >> 16) << bits))
                    << shift;
    }
    for (uint32_t i = both; i < count; i++)
        words[i] += rounded(values[i], scaling, sa_draw(draws, i) & 0xffffu) << shift;
}

SA_VECTORISED static void fill(sa_uint32_at *words, uint32_t count, uint32_t word) {
    for (uint32_t i = 0; i < count; i++) words[i] = word;
}

SA_VECTORISED static void swap(sa_uint32_at *words, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) words[i] = SA_BE32(words[i]);
}

/* Values of a row that lie in a lane. */
static uint32_t in_lane(const struct sa_coding *coding, uint32_t count, uint32_t lane) {
    uint32_t before = lane * coding->elements;
    return count < before ? 0 : count - before < coding->elements ? count - before : coding->elements;
}

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    const sa_float32_at *lane = (const sa_float32_at *)values;
    sa_uint32_at *words = (sa_uint32_at *)payload;
    uint32_t elements = coding->elements, bits = coding->codec->lane_bits, lanes = 32 / bits, all = 0;
    if (code == SA_CODE_GREATEST) {
        memset(payload, 0, 4ull * elements);
        return;
    }
    for (uint32_t k = 0; k < lanes; k++) all |= coding->half << k * bits;
    fill(words, elements, all);
    uint32_t unit = coding->random ? 1u << FRACTION : 1;
    float limit = (float)coding->half * (float)unit;
    struct scaling scaling = {code > 0 ? (float)(limit / scale_of(code)) : 0, limit};
    for (uint32_t k = 0; k < lanes && in_lane(coding, count, k); k += coding->random ? 2 : 1, lane += elements) {
        if (!coding->random) {
            add_nearest(lane, in_lane(coding, count, k), scaling, k * bits, words);
            continue;
        }
        uint32_t both = k + 1 < lanes ? in_lane(coding, count, k + 1) : 0;
        add_random(lane, both ? lane + elements : lane, in_lane(coding, count, k), both, scaling,
                   sa_draws_of(coding->key, number * SA_PAIRS + k / 2), k * bits, bits, words);
        lane += elements;
    }
    swap(words, elements);
}

SA_VECTORISED static void dequantise(sa_float32_at *restrict values, uint32_t count, float down, uint32_t shift,
                                     uint32_t mask, int32_t bias, const sa_uint32_at *restrict sums) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t sum = sums[i];
        values[i] = (float)((int32_t)(SA_BE32(sum) >> shift & mask) - bias) * down;
    }
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    if (code == SA_CODE_GREATEST) {
        sa_fixed_point.decode(coding, values, count, code, payload); /* NaN (F4) */
        return;
    }
    uint32_t bits = coding->codec->lane_bits;
    float down = code > 0 ? (float)(scale_of(code) / coding->half) : 0;
    for (uint32_t k = 0, many; (many = k < 32 / bits ? in_lane(coding, count, k) : 0); k++)
        dequantise((sa_float32_at *)values + (uint64_t)k * coding->elements, many, down, k * bits, (1u << bits) - 1,
                   (int32_t)(coding->ranks * coding->half), (const sa_uint32_at *)payload);
}

#define LANES(bits)                                                           \
    static uint32_t width##bits(enum sa_dtype dtype, uint32_t elements) {     \
        (void)dtype;                                                          \
        return 32 / bits * elements;                                          \
    }                                                                         \
    const struct sa_codec sa_lanes##bits = {                                  \
        .name = "lanes" #bits,                                                \
        .rounds = 1,                                                          \
        .lane_bits = bits,                                                    \
        .width = width##bits,                                                 \
        .prepare = prepare,                                                   \
        .encode = encode,                                                     \
        .decode = decode,                                                     \
    };

LANES(16)
LANES(10)
LANES(8)
LANES(6)
LANES(5)
LANES(4)
