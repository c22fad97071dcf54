/* THC: the levels of a rotated row, 4 to a word: F15, bit for bit as switchagg/codecs/rotated/thc.py. */
#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/rotation.h"
#include "switchagg/native/codecs/rounding.h"

#define LANES 4u
#define BITS 8u
#define FRACTION 16u
#define REACH 2.154 /* rms of the greatest level: 1 in 32 of normally distributed values exceeds it */

/* Numbers from 0 to `most`; bit i of `present`: i is a level. There are never more than two others between levels. */
struct levels {
    uint32_t most, present;
};

static const struct levels uniform = {15, 0xffff};
static const struct levels table = {30, 0x4aab6aa9};

/* The level below or above a value, at random: by how near it is. */
SA_INLINE uint32_t level_of(float value, struct levels levels, uint32_t draw) {
    float half = (float)(levels.most << (FRACTION - 1)), limit = 2 * half, scaled = value * half + half;
    scaled = scaled < limit ? scaled : limit; /* NaN, too */
    scaled = scaled > 0 ? scaled : 0;
    uint32_t place = (uint32_t)(int32_t)__builtin_rintf(scaled), at = place >> FRACTION, present = levels.present;
    at = at < levels.most - 1 ? at : levels.most - 1;
    uint32_t here = present >> at & 1, before = present << 1 >> at & 1;
    uint32_t next = present >> 1 >> at & 1, second = present >> 2 >> at & 1;
    uint32_t low = at - (1 - here) * (2 - before), gap = at + 1 + (1 - next) * (2 - second) - low;
    return low + ((int32_t)(place - (low << FRACTION) + gap * draw) >= (int32_t)(gap << FRACTION) ? gap : 0);
}

SA_VECTORISED static void put(const float *restrict row, uint32_t elements, struct levels levels, struct sa_draws first,
                              struct sa_draws second, sa_uint32_at *restrict words) {
    const float *b = row + elements, *c = b + elements, *d = c + elements;
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t draw = sa_draw(first, i), other = sa_draw(second, i);
        uint32_t word = level_of(row[i], levels, draw & 0xffffu) | level_of(b[i], levels, draw >> FRACTION) << BITS |
                        level_of(c[i], levels, other & 0xffffu) << 2 * BITS |
                        level_of(d[i], levels, other >> FRACTION) << 3 * BITS;
        words[i] = SA_BE32(word);
    }
}

SA_VECTORISED static void take(float *restrict row, uint32_t elements, uint32_t shift, int32_t all, float unit,
                               const sa_uint32_at *restrict sums) {
    for (uint32_t i = 0; i < elements; i++) {
        uint32_t sum = sums[i];
        row[i] = (float)(2 * (int32_t)(SA_BE32(sum) >> shift & 0xffu) - all) * unit;
    }
}

static void encode(struct levels levels, const struct sa_coding *coding, const uint8_t *values, uint32_t count,
                   uint64_t number, int16_t code, uint8_t *payload) {
    if (code == SA_CODE_GREATEST) {
        memset(payload, 0, 4ull * coding->elements);
        return;
    }
    put(sa_rotated(coding, values, count, code, REACH), coding->elements, levels,
        sa_draws_of(coding->key, number * SA_PAIRS), sa_draws_of(coding->key, number * SA_PAIRS + 1),
        (sa_uint32_at *)payload);
}

static void decode(struct levels levels, const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    float *row = sa_rotation_row(), unit = (float)(1 / (double)levels.most);
    for (uint32_t lane = 0; lane < LANES; lane++)
        take(row + lane * coding->elements, coding->elements, lane * BITS, (int32_t)(coding->ranks * levels.most), unit,
             (const sa_uint32_at *)payload);
    sa_from_rotated(coding, row, values, count, code, REACH);
}

static uint32_t width(const struct sa_coding *coding) { return LANES * coding->elements; }

#define THC(codec, levels)                                                                                      \
    static void encode_##levels(const struct sa_coding *coding, const uint8_t *values, uint32_t count,          \
                                uint64_t number, int16_t code, uint8_t *payload) {                              \
        encode(levels, coding, values, count, number, code, payload);                                           \
    }                                                                                                           \
    static void decode_##levels(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,  \
                                const uint8_t *payload) {                                                       \
        decode(levels, coding, values, count, code, payload);                                                   \
    }                                                                                                           \
    const struct sa_codec sa_##codec = {                                                                        \
        .name = #codec,                                                                                         \
        .rounds = 1,                                                                                            \
        .lane_bits = BITS,                                                                                      \
        .width = width,                                                                                         \
        .prepare = sa_rms_code,                                                                                 \
        .encode = encode_##levels,                                                                              \
        .decode = decode_##levels,                                                                              \
    };

THC(thc, uniform)
THC(thc_table, table)
