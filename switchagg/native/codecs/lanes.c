/* float32 as biased integers, several in a word: F9 to F13, bit for bit as switchagg/codecs/lanes.py and
   quantised/: families of lanes differ in the scale of a row, and in what becomes of a value under it.
   A word is summed up lane by lane in the payload, and brought to the network's byte order last. */
#include <float.h>
#include <math.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"
#include "switchagg/native/codecs/rounding.h"

extern const struct sa_codec sa_fixed_point;

#define LEAST_SCALE (27 << 7)  /* 2^-100, as the upper half of a float32: no factor is subnormal because of it */
#define GREATEST_SCALE 0x7f7f /* the largest finite one */
#define FRACTION 16           /* bits of a value that a random number decides on */

/* ---- codes */

/* A float32 that isn't negative, as bits; those that aren't finite are no less than INFINITE. */
#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu

/* The upper half, rounded up. */
static int32_t code_of(uint32_t bits) {
    if (bits >= INFINITE) return SA_CODE_GREATEST;
    int32_t code = (int32_t)((bits + 0xffffu) >> 16);
    return code < GREATEST_SCALE ? code : GREATEST_SCALE;
}

static uint32_t greatest_of(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    (void)coding;
    return sa_greatest_magnitude((const sa_uint32_at *)values, count);
}

static int32_t prepare_lanes(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    return code_of(greatest_of(coding, values, count));
}

/* Value i is added to sum i mod PARTIAL_SUMS: an order that NumPy and vectors of any width have in common. Squares are
   exact, so a fused multiplication gives the same bits. Vectors by name: compilers keep an array of sums in memory. */
#define PARTIAL_SUMS 16u
#define QUARTER (PARTIAL_SUMS / 4)
typedef float floats __attribute__((vector_size(4 * QUARTER)));
typedef int32_t integers __attribute__((vector_size(4 * QUARTER)));
typedef double doubles __attribute__((vector_size(8 * QUARTER)));

/* Sums of squares, or of magnitudes, of 16 values each time; how many aren't 0. */
SA_INLINE uint64_t add_up(const sa_float32_at *values, uint64_t count, int squares, double *sums) {
    doubles partial[4] = {{0}};
    integers zeros[4] = {{0}};
    float rest[PARTIAL_SUMS] = {0};
    uint64_t all = (count + PARTIAL_SUMS - 1) / PARTIAL_SUMS * PARTIAL_SUMS, nonzero = all;
    memcpy(rest, values + count / PARTIAL_SUMS * PARTIAL_SUMS, count % PARTIAL_SUMS * sizeof *rest);
    for (uint64_t at = 0; at < all; at += PARTIAL_SUMS) {
        const sa_float32_at *from = count - at >= PARTIAL_SUMS ? values + at : rest;
        for (uint32_t quarter = 0; quarter < 4; quarter++) {
            integers bits;
            floats sizes;
            memcpy(&bits, from + quarter * QUARTER, sizeof bits);
            bits &= (int32_t)MAGNITUDE;
            memcpy(&sizes, &bits, sizeof sizes);
            doubles wide = __builtin_convertvector(sizes, doubles);
            partial[quarter] += squares ? wide * wide : wide;
            zeros[quarter] += bits == 0; /* -1 where it is */
        }
    }
    for (uint32_t i = 0; i < PARTIAL_SUMS; i++) {
        sums[i] = partial[i / QUARTER][i % QUARTER];
        nonzero -= (uint32_t)-zeros[i / QUARTER][i % QUARTER];
    }
    return nonzero;
}

SA_VECTORISED static uint64_t add_squares(const sa_float32_at *values, uint64_t count, double *sums) {
    return add_up(values, count, 1, sums);
}

SA_VECTORISED static uint64_t add_magnitudes(const sa_float32_at *values, uint64_t count, double *sums) {
    return add_up(values, count, 0, sums);
}

static double mean_of(double *sums, uint64_t nonzero) {
    for (uint32_t half = PARTIAL_SUMS / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0] / (double)(nonzero ? nonzero : 1);
}

/* A scale as bits, or the row's greatest magnitude, if that is less. */
static uint32_t at_most(double scale, uint32_t greatest) {
    uint32_t bits = sa_bits((float)(scale < (double)FLT_MAX ? scale : (double)FLT_MAX));
    return bits < greatest ? bits : greatest;
}

static int32_t prepare_ternary(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    uint32_t greatest = greatest_of(coding, values, count);
    double sums[PARTIAL_SUMS];
    if (greatest >= INFINITE) return SA_CODE_GREATEST;
    uint64_t nonzero = add_squares((const sa_float32_at *)values, count, sums);
    return code_of(at_most(2.5 * sqrt(mean_of(sums, nonzero)), greatest));
}

/* As bits; INFINITE if a value isn't finite. */
static uint32_t means(const struct sa_coding *coding, const uint8_t *values, uint64_t count, double factor) {
    uint32_t greatest = greatest_of(coding, values, count);
    double sums[PARTIAL_SUMS];
    if (greatest >= INFINITE) return INFINITE;
    uint64_t nonzero = add_magnitudes((const sa_float32_at *)values, count, sums);
    return at_most(factor * mean_of(sums, nonzero), greatest);
}

static int32_t prepare_twobit(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    return code_of(means(coding, values, count, 1.5) & 0xffff0000u); /* rounded down */
}

static int32_t prepare_onebit(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    return code_of(means(coding, values, count, 1.0));
}

static int32_t prepare_sign(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    uint32_t greatest = greatest_of(coding, values, count);
    return greatest >= INFINITE ? SA_CODE_GREATEST : code_of(greatest ? sa_bits(1) : 0);
}

/* Rounds to the nearest fp16, ties to even: to 11 bits, or to a multiple of 2^-24. */
SA_INLINE float as_fp16(float value) {
    uint32_t bits = sa_bits(value), magnitude = bits & MAGNITUDE, rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1)) & ~0x1fffu;
    float size = sa_float(magnitude), normal = sa_float(rounded), small = (size + 0.5f) - 0.5f;
    float result = size < 0x1p-14f ? small : size < 65520.0f ? normal : size * INFINITY;
    return bits >> 31 ? -result : result;
}

SA_INLINE float as_bf16(float value) {
    uint32_t bits = sa_bits(value);
    return sa_float((bits + (0x7fffu + (bits >> 16 & 1))) & 0xffff0000u);
}

/* A power of two. */
static int32_t code_of_float(uint32_t greatest, float rounded) {
    uint32_t bits = sa_bits(rounded);
    if (greatest >= INFINITE || bits >= INFINITE) return SA_CODE_GREATEST;
    bits = (bits + 0x7fffffu) & INFINITE;
    return code_of(bits < INFINITE ? bits : INFINITE - 0x800000u);
}

static int32_t prepare_fp16(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    uint32_t greatest = greatest_of(coding, values, count);
    return code_of_float(greatest, as_fp16(sa_float(greatest)));
}

static int32_t prepare_bf16(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    uint32_t greatest = greatest_of(coding, values, count);
    return code_of_float(greatest, as_bf16(sa_float(greatest)));
}

static double scale_of(int16_t code) {
    return sa_float((uint32_t)(code < LEAST_SCALE ? LEAST_SCALE : code > GREATEST_SCALE ? GREATEST_SCALE : code) << 16);
}

/* ---- rows */

/* The factor that takes values to integers of at most `limit`. */
struct scaling {
    float up, limit;
    uint32_t below; /* of signs: the largest magnitude that becomes 0, as bits */
};

/* Rounds to an integer, ties to even. */
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

#define ADD_NEAREST(name, rounded)                                                                              \
    SA_VECTORISED static void name(const sa_float32_at *restrict values, uint32_t count, struct scaling scaling, \
                                   uint32_t shift, sa_uint32_at *restrict words) {                              \
        for (uint32_t i = 0; i < count; i++) words[i] += quantised(rounded(values[i]), scaling) << shift;        \
    }

ADD_NEAREST(add_nearest, )
ADD_NEAREST(add_fp16, as_fp16)
ADD_NEAREST(add_bf16, as_bf16)

SA_VECTORISED static void add_signs(const sa_uint32_at *restrict values, uint32_t count, int32_t below,
                                    uint32_t shift, sa_uint32_at *restrict words) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = values[i], sign = 1u - (bits >> 31) * 2;
        words[i] += ((int32_t)(bits & MAGNITUDE) > below ? sign : 0) << shift;
    }
}

/* `count` values of a lane, whose lowest bit is bit `shift` of a word. */
static void add(enum sa_rounding rounding, const sa_float32_at *values, uint32_t count, struct scaling scaling,
                uint32_t shift, sa_uint32_at *words) {
    if (rounding == SA_SIGNS || rounding == SA_NOT_BELOW_SCALE)
        add_signs((const sa_uint32_at *)values, count, (int32_t)scaling.below, shift, words);
    else if (rounding == SA_FP16)
        add_fp16(values, count, scaling, shift, words);
    else if (rounding == SA_BF16)
        add_bf16(values, count, scaling, shift, words);
    else
        add_nearest(values, count, scaling, shift, words);
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

static struct scaling scaling_of(const struct sa_coding *coding, int16_t code) {
    float limit = (float)coding->half * (float)(coding->random ? 1u << FRACTION : 1);
    if (code <= 0) return (struct scaling){0, limit, MAGNITUDE};
    double scale = scale_of(code);
    return (struct scaling){
        .up = (float)(limit / scale),
        .limit = limit,
        .below = coding->codec->rounding == SA_NOT_BELOW_SCALE ? sa_bits((float)scale) - 1 : 0,
    };
}

/* ---- whole rows of 2, 4 or 8 lanes: all lanes of SA_PART words at a time, which stay in registers meanwhile */

/* The last words may be handled twice. */
SA_INLINE uint32_t next_part(uint32_t at, uint32_t elements) {
    return elements - at < 2 * SA_PART ? elements - SA_PART : at + SA_PART;
}

SA_INLINE void put_part(const uint32_t *part, sa_uint32_at *words) {
    for (uint32_t i = 0; i < SA_PART; i++) words[i] = SA_BE32(part[i]);
}

SA_INLINE void nearest_parts(const sa_float32_at *values, uint32_t elements, uint32_t bits, struct scaling scaling,
                             uint32_t all, uint64_t ahead, sa_uint32_at *words) {
    for (uint32_t at = 0, last = 0; !last; at = next_part(at, elements)) {
        uint32_t part[SA_PART];
        last = at + SA_PART == elements;
        for (uint32_t i = 0; i < SA_PART; i++) part[i] = all;
        for (uint32_t k = 0; k < 32 / bits; k++) {
            const sa_float32_at *lane = values + k * elements + at;
            sa_fetch_part(lane, ahead);
            for (uint32_t i = 0; i < SA_PART; i++) part[i] += quantised(lane[i], scaling) << k * bits;
        }
        put_part(part, words + at);
    }
}

SA_VECTORISED static void encode_nearest(const sa_float32_at *values, uint32_t elements, uint32_t bits,
                                         struct scaling scaling, uint32_t all, uint64_t ahead, sa_uint32_at *words) {
    if (bits == 16) nearest_parts(values, elements, 16, scaling, all, ahead, words);
    else if (bits == 8) nearest_parts(values, elements, 8, scaling, all, ahead, words);
    else nearest_parts(values, elements, 4, scaling, all, ahead, words);
}

/* The integer part, above the FRACTION of a number that isn't negative, in a lane whose lowest bit is bit `shift`. */
SA_INLINE uint32_t in_place(uint32_t number, uint32_t shift, uint32_t bits) {
    uint32_t mask = ((1u << bits) - 1) << shift;
    return (shift < FRACTION ? number >> (FRACTION - shift) : number << (shift - FRACTION)) & mask;
}

SA_INLINE void random_parts(const sa_float32_at *values, uint32_t elements, uint32_t bits, struct scaling scaling,
                            uint32_t half, const struct sa_draws *draws, uint64_t ahead, sa_uint32_at *words) {
    uint32_t bias = half << FRACTION;
    for (uint32_t at = 0, last = 0; !last; at = next_part(at, elements)) {
        uint32_t part[SA_PART] = {0};
        last = at + SA_PART == elements;
#pragma GCC unroll 4 /* its shifts are constants then */
        for (uint32_t k = 0; k < 32 / bits; k += 2) {
            const sa_float32_at *lane = values + k * elements + at, *second = lane + elements;
            sa_fetch_part(lane, ahead);
            sa_fetch_part(second, ahead);
            for (uint32_t i = 0; i < SA_PART; i++) {
                uint32_t draw = sa_draw(draws[k / 2], at + i);
                part[i] |= in_place(quantised(lane[i], scaling) + ((draw & 0xffffu) | bias), k * bits, bits) |
                           in_place(quantised(second[i], scaling) + (draw >> 16 | bias), (k + 1) * bits, bits);
            }
        }
        put_part(part, words + at);
    }
}

SA_VECTORISED static void encode_random(const sa_float32_at *values, uint32_t elements, uint32_t bits,
                                        struct scaling scaling, uint32_t half, const struct sa_draws *draws,
                                        uint64_t ahead, sa_uint32_at *words) {
    if (bits == 16) random_parts(values, elements, 16, scaling, half, draws, ahead, words);
    else if (bits == 8) random_parts(values, elements, 8, scaling, half, draws, ahead, words);
    else random_parts(values, elements, 4, scaling, half, draws, ahead, words);
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
    struct scaling scaling = scaling_of(coding, code);
    if (count == coding->width && elements >= SA_PART && coding->codec->rounding <= SA_RANDOM && !(bits & (bits - 1))) {
        struct sa_draws draws[SA_PAIRS];
        for (uint32_t k = 0; k < lanes / 2; k++) draws[k] = sa_draws_of(coding->key, number * SA_PAIRS + k);
        if (coding->random)
            encode_random(lane, elements, bits, scaling, coding->half, draws, sa_ahead(coding), words);
        else
            encode_nearest(lane, elements, bits, scaling, all, sa_ahead(coding), words);
        return;
    }
    fill(words, elements, all);
    for (uint32_t k = 0; k < lanes && in_lane(coding, count, k); k += coding->random ? 2 : 1, lane += elements) {
        if (!coding->random) {
            add(coding->codec->rounding, lane, in_lane(coding, count, k), scaling, k * bits, words);
            continue;
        }
        uint32_t both = k + 1 < lanes ? in_lane(coding, count, k + 1) : 0;
        add_random(lane, both ? lane + elements : lane, in_lane(coding, count, k), both, scaling,
                   sa_draws_of(coding->key, number * SA_PAIRS + k / 2), k * bits, bits, words);
        lane += elements;
    }
    swap(words, elements);
}

SA_INLINE float summed(int32_t sum, float down) { return (float)sum * down; }

/* All ranks' number of votes for the sign that most have given. */
SA_INLINE float voted(int32_t votes, float ranks) { return votes > 0 ? ranks : votes < 0 ? -ranks : 0; }

SA_INLINE int32_t sum_in(uint32_t word, uint32_t shift, uint32_t mask, int32_t bias) {
    return (int32_t)(SA_BE32(word) >> shift & mask) - bias;
}

#define DECODE(name, value)                                                                                           \
    SA_VECTORISED static void name(sa_float32_at *restrict values, uint32_t count, float factor, uint32_t shift,       \
                                   uint32_t mask, int32_t bias, uint64_t ahead, const sa_uint32_at *restrict words) { \
        for (; count >= SA_PART; count -= SA_PART, values += SA_PART, words += SA_PART) {                             \
            sa_fetch_part(values, ahead);                                                                             \
            for (uint32_t i = 0; i < SA_PART; i++) values[i] = value(sum_in(words[i], shift, mask, bias), factor);    \
        }                                                                                                             \
        for (uint32_t i = 0; i < count; i++) values[i] = value(sum_in(words[i], shift, mask, bias), factor);          \
    }

DECODE(dequantise, summed)
DECODE(count_votes, voted)

static void decode_as(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                      const uint8_t *payload, int votes) {
    if (code == SA_CODE_GREATEST) {
        sa_fixed_point.decode(coding, values, count, code, payload); /* NaN (F4) */
        return;
    }
    uint32_t bits = coding->codec->lane_bits;
    float down = code > 0 ? (float)(scale_of(code) / coding->half) : 0;
    for (uint32_t k = 0, many; (many = k < 32 / bits ? in_lane(coding, count, k) : 0); k++)
        (votes ? count_votes : dequantise)((sa_float32_at *)values + (uint64_t)k * coding->elements, many,
                                           votes ? (float)coding->ranks : down, k * bits, (1u << bits) - 1,
                                           (int32_t)(coding->ranks * coding->half), sa_ahead(coding),
                                           (const sa_uint32_at *)payload);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    decode_as(coding, values, count, code, payload, 0);
}

static void decode_votes(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                         const uint8_t *payload) {
    decode_as(coding, values, count, code, payload, 1);
}

#define WIDTH(bits)                                                       \
    static uint32_t width##bits(const struct sa_coding *coding) { return 32 / bits * coding->elements; }

#define FAMILY(codec, bits, scale, how, most, decoding) \
    const struct sa_codec sa_##codec = {                \
        .name = #codec,                                 \
        .rounds = 1,                                    \
        .lane_bits = bits,                              \
        .levels = most,                                 \
        .rounding = how,                                \
        .width = width##bits,                           \
        .prepare = prepare_##scale,                     \
        .encode = encode,                               \
        .decode = decoding,                             \
    };

#define FOUR_WIDTHS(family, how, decoding)           \
    FAMILY(family##8, 8, family, how, 1, decoding)   \
    FAMILY(family##6, 6, family, how, 1, decoding)   \
    FAMILY(family##5, 5, family, how, 1, decoding)   \
    FAMILY(family##4, 4, family, how, 1, decoding)

WIDTH(16)
WIDTH(10)
WIDTH(8)
WIDTH(6)
WIDTH(5)
WIDTH(4)

FAMILY(lanes16, 16, lanes, SA_NEAREST, 0, decode)
FAMILY(lanes10, 10, lanes, SA_RANDOM, 0, decode)
FAMILY(lanes8, 8, lanes, SA_RANDOM, 0, decode)
FAMILY(lanes6, 6, lanes, SA_RANDOM, 0, decode)
FAMILY(lanes5, 5, lanes, SA_RANDOM, 0, decode)
FAMILY(lanes4, 4, lanes, SA_RANDOM, 0, decode)
FAMILY(qsgd16, 16, lanes, SA_RANDOM, 127, decode)
FAMILY(qsgd10, 10, lanes, SA_RANDOM, 127, decode)
FAMILY(fp16, 16, fp16, SA_FP16, 0, decode)
FAMILY(bf16, 16, bf16, SA_BF16, 0, decode)
FOUR_WIDTHS(ternary, SA_RANDOM, decode)
FOUR_WIDTHS(twobit, SA_NOT_BELOW_SCALE, decode)
FOUR_WIDTHS(onebit, SA_SIGNS, decode)
FOUR_WIDTHS(sign, SA_SIGNS, decode_votes)
