#include "switchagg/native/codecs/rotation.h"

#include <float.h>
#include <math.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/rounding.h"

extern const struct sa_codec sa_fixed_point;

#define LANES_MOST 8u
#define BLOCK_STAGES 5u
#define BLOCK (1u << BLOCK_STAGES)
#define GROUP 32u /* values whose signs are the bits of a word */

static _Thread_local float room[LANES_MOST * SA_ELEMENTS_MAX + BLOCK] __attribute__((aligned(64)));

float *sa_rotation_row(void) { return room; }

struct sa_rotation sa_rotation_of(uint32_t width) {
    uint32_t inner = width & -width, rows = width / inner, outer = 1u << (31 - __builtin_clz(rows));
    float within = (float)(1 / sqrt(outer));
    return (struct sa_rotation){width, inner, outer, 1 / sqrt((double)inner * outer), within};
}

/* ---- vectors, of the size that AVX2 has: others take two for one, or half of theirs */

#define SIGN 0x80000000u
#define VECTOR_STAGES 3u
#define VECTOR (1u << VECTOR_STAGES)
#define VECTORS (BLOCK / VECTOR)

typedef float float_vector __attribute__((vector_size(4 * VECTOR)));
typedef float float_vector_at __attribute__((vector_size(4 * VECTOR), aligned(1), may_alias));
typedef uint32_t bits_vector __attribute__((vector_size(4 * VECTOR)));
typedef uint32_t bits_vector_at __attribute__((vector_size(4 * VECTOR), aligned(1), may_alias));

/* ---- signs */

#define LAST_BIT ((bits_vector){31, 30, 29, 28, 27, 26, 25, 24})
#define FIRST 1u
#define SECOND (1u << 16)

SA_INLINE uint32_t signs_of(uint32_t number) { return sa_draw((struct sa_draws){number, 0}, 0); }

SA_INLINE float flipped(float value, uint32_t signs, uint32_t bit) {
    return sa_float(sa_bits(value) ^ (signs << (31 - bit) & SIGN));
}

/* number: the hash of it is the first group's signs. `from` and `to` may be the same. */
SA_VECTORISED static void flip(const sa_float32_at *from, uint32_t count, uint32_t number, float factor,
                               sa_float32_at *to) {
    for (; count >= GROUP; count -= GROUP, number++, from += GROUP, to += GROUP) {
        uint32_t signs = signs_of(number);
        for (uint32_t i = 0; i < GROUP; i += VECTOR) {
            bits_vector flips = signs << (LAST_BIT - i) & SIGN;
            *(float_vector_at *)(to + i) = (float_vector)(*(const bits_vector_at *)(from + i) ^ flips) * factor;
        }
    }
    uint32_t signs = signs_of(number);
    for (uint32_t i = 0; i < count; i++) to[i] = flipped(from[i], signs, i) * factor;
}

/* ---- stages: a, b -> a + b, a - b, of values that lie `apart` */

/* A stage within a vector: the value that lies `apart`, plus this one, whose sign is changed where it is the second. */
#define MIX_WITHIN(x, apart, signs) x = (float_vector)((bits_vector)x ^ signs) + EXCHANGED(x, apart)
#define NUMBERS_APART(n) 0 ^ n, 1 ^ n, 2 ^ n, 3 ^ n, 4 ^ n, 5 ^ n, 6 ^ n, 7 ^ n
#ifdef __clang__
#define EXCHANGED(x, apart) __builtin_shufflevector(x, x, NUMBERS_APART(apart))
#else
#define EXCHANGED(x, apart) __builtin_shuffle(x, (bits_vector){NUMBERS_APART(apart)})
#endif

/* Does the first `stages` stages, at most BLOCK_STAGES, of values that lie 1, 2, 4, … apart: a block stays in registers. */
SA_VECTORISED static void mix_blocks(float *x, uint32_t count, uint32_t stages) {
    const bits_vector seconds1 = {0, SIGN, 0, SIGN, 0, SIGN, 0, SIGN}, seconds2 = {0, 0, SIGN, SIGN, 0, 0, SIGN, SIGN};
    const bits_vector seconds4 = {0, 0, 0, 0, SIGN, SIGN, SIGN, SIGN};
    for (float *end = x + count; x < end; x += BLOCK) {
        float_vector y[VECTORS];
        for (uint32_t i = 0; i < VECTORS; i++) {
            y[i] = ((float_vector_at *)x)[i];
            MIX_WITHIN(y[i], 1, seconds1);
            if (stages > 1) MIX_WITHIN(y[i], 2, seconds2);
            if (stages > 2) MIX_WITHIN(y[i], 4, seconds4);
        }
        for (uint32_t stage = VECTOR_STAGES, apart = 1; stage < BLOCK_STAGES; stage++, apart *= 2) {
            if (stages <= stage) break;
            for (uint32_t i = 0; i < VECTORS; i++) {
                if (i & apart) continue;
                float_vector first = y[i], second = y[i + apart];
                y[i] = first + second, y[i + apart] = first - second;
            }
        }
        for (uint32_t i = 0; i < VECTORS; i++) ((float_vector_at *)x)[i] = y[i];
    }
}

/* Does one, two or three stages at once, of 2, 4 or 8 sets of `apart` neighbours. */
SA_VECTORISED static void mix2(float *restrict a, float *restrict b, uint32_t apart) {
    for (uint32_t i = 0; i < apart; i++) {
        float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum, b[i] = difference;
    }
}

SA_VECTORISED static void mix4(float *restrict a, float *restrict b, float *restrict c, float *restrict d, uint32_t apart) {
    for (uint32_t i = 0; i < apart; i++) {
        float e = a[i] + b[i], f = a[i] - b[i], g = c[i] + d[i], h = c[i] - d[i];
        a[i] = e + g, b[i] = f + h, c[i] = e - g, d[i] = f - h;
    }
}

SA_VECTORISED static void mix8(float *restrict a, float *restrict b, float *restrict c, float *restrict d,
                               float *restrict e, float *restrict f, float *restrict g, float *restrict h, uint32_t apart) {
    for (uint32_t i = 0; i < apart; i++) {
        float p = a[i] + b[i], q = a[i] - b[i], r = c[i] + d[i], s = c[i] - d[i];
        float t = e[i] + f[i], u = e[i] - f[i], v = g[i] + h[i], w = g[i] - h[i];
        float ac = p + r, bd = q + s, ca = p - r, db = q - s, eg = t + v, fh = u + w, ge = t - v, hf = u - w;
        a[i] = ac + eg, b[i] = bd + fh, c[i] = ca + ge, d[i] = db + hf;
        e[i] = ac - eg, f[i] = bd - fh, g[i] = ca - ge, h[i] = db - hf;
    }
}

/* Does the stages from `apart` to below `end`, of a whole row, with room behind it, or of `end` values. */
static void mix(float *x, uint32_t count, uint32_t apart, uint32_t end) {
    if (apart == 1 && end > 1 && (end < count || count % BLOCK == 0)) { /* else what lies behind would be mixed, too */
        uint32_t stages = (uint32_t)__builtin_ctz(end);
        stages = stages < BLOCK_STAGES ? stages : BLOCK_STAGES;
        mix_blocks(x, count, stages);
        apart <<= stages;
    }
    while (apart < end) {
        uint32_t stages = (uint32_t)__builtin_ctz(end / apart);
        stages = stages == 1 ? 1 : stages == 2 || stages == 4 ? 2 : 3;
        for (float *p = x; p < x + count; p += apart << stages) {
            if (stages == 1) mix2(p, p + apart, apart);
            else if (stages == 2) mix4(p, p + apart, p + 2 * apart, p + 3 * apart, apart);
            else mix8(p, p + apart, p + 2 * apart, p + 3 * apart, p + 4 * apart, p + 5 * apart, p + 6 * apart, p + 7 * apart, apart);
        }
        apart <<= stages;
    }
}

/* The two outer transforms share this part, between them. */
static void flip_overlap(const struct sa_rotation *rotation, float *row) {
    uint32_t outer = rotation->inner * rotation->outer, width = rotation->width;
    sa_float32_at *overlap = (sa_float32_at *)(row + width - outer);
    flip(overlap, 2 * outer - width, SECOND, rotation->within, overlap);
}

/* ---- rows */

static float single(double factor) { return (float)(factor < (double)FLT_MAX ? factor : (double)FLT_MAX); }

void sa_rotate(const struct sa_rotation *rotation, const sa_float32_at *values, uint32_t count, double factor,
               float *row) {
    uint32_t width = rotation->width, inner = rotation->inner, outer = inner * rotation->outer;
    flip(values, count, FIRST, single(factor * rotation->factor), (sa_float32_at *)row);
    memset(row + count, 0, 4ull * (width - count));
    mix(row, width, 1, inner);
    mix(row, outer, inner, outer);
    if (outer == width) return;
    flip_overlap(rotation, row);
    mix(row + width - outer, outer, inner, outer);
}

void sa_rotate_back(const struct sa_rotation *rotation, float *row, double factor, sa_float32_at *values,
                    uint32_t count) {
    uint32_t width = rotation->width, inner = rotation->inner, outer = inner * rotation->outer;
    if (outer != width) {
        mix(row + width - outer, outer, inner, outer);
        flip_overlap(rotation, row);
    }
    mix(row, outer, inner, outer);
    mix(row, width, 1, inner);
    flip((sa_float32_at *)row, count, FIRST, single(factor * rotation->factor), values);
}

/* ---- codes */

#define LEAST_SCALE (27 << 7) /* as lanes have it (F9) */
#define GREATEST_SCALE 0x7f7f
#define PARTIAL_SUMS 16u /* of value i in number i mod 16: an order that NumPy has, too */
#define QUARTER 4u

typedef double doubles __attribute__((vector_size(8 * QUARTER)));

SA_VECTORISED static void add_all_squares(const sa_float32_at *values, uint64_t count, double *sums) {
    doubles lanes[PARTIAL_SUMS / QUARTER] = {{0}};
    for (; count >= PARTIAL_SUMS; count -= PARTIAL_SUMS, values += PARTIAL_SUMS)
        for (uint32_t i = 0; i < PARTIAL_SUMS / QUARTER; i++) {
            doubles wide = {(double)values[4 * i], (double)values[4 * i + 1], (double)values[4 * i + 2], (double)values[4 * i + 3]};
            lanes[i] += wide * wide;
        }
    for (uint32_t i = 0; i < count; i++) lanes[i / QUARTER][i % QUARTER] += (double)values[i] * (double)values[i];
    memcpy(sums, lanes, sizeof lanes);
}

int32_t sa_rms_code(const struct sa_coding *coding, const uint8_t *values, uint64_t count) {
    double sums[PARTIAL_SUMS];
    sa_fetch_ahead(coding, values);
    add_all_squares((const sa_float32_at *)values, count, sums);
    for (uint32_t half = PARTIAL_SUMS / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) sums[i] += sums[i + half];
    if (!(sums[0] <= DBL_MAX)) return SA_CODE_GREATEST;
    int32_t code = (int32_t)((sa_bits((float)sqrt(sums[0] / coding->width)) + 0xffffu) >> 16);
    return code < GREATEST_SCALE ? code : GREATEST_SCALE;
}

static double rms_of(int16_t code) {
    return sa_float((uint32_t)(code < LEAST_SCALE ? LEAST_SCALE : code > GREATEST_SCALE ? GREATEST_SCALE : code) << 16);
}

float *sa_rotated(const struct sa_coding *coding, const uint8_t *values, uint32_t count, int16_t code, double reach) {
    float *row = sa_rotation_row();
    if (code <= 0) {
        memset(row, 0, 4ull * coding->width);
        return row;
    }
    struct sa_rotation rotation = sa_rotation_of(coding->width);
    sa_fetch_ahead(coding, values);
    sa_rotate(&rotation, (const sa_float32_at *)values, count, 1 / (reach * rms_of(code)), row);
    return row;
}

void sa_from_rotated(const struct sa_coding *coding, float *row, uint8_t *values, uint32_t count, int16_t code,
                     double reach) {
    if (code <= 0) {
        memset(values, 0, 4ull * count);
    } else if (code == SA_CODE_GREATEST) {
        sa_fixed_point.decode(coding, values, count, code, NULL); /* NaN */
    } else {
        struct sa_rotation rotation = sa_rotation_of(coding->width);
        sa_fetch_ahead(coding, values);
        sa_rotate_back(&rotation, row, reach * rms_of(code), (sa_float32_at *)values, count);
    }
}
