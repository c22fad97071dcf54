/* A random rotation of a row (F14), bit for bit as switchagg/codecs/rotated/rotation.py. */
#pragma once

#include "switchagg/native/codecs/limbs.h"

/* Parts of a row of `width` values: `inner` is the largest power of two that divides it, `outer` the largest in the rest. */
struct sa_rotation {
    uint32_t width, inner, outer;
    double factor; /* that makes it a rotation, and between the two outer transforms: */
    float within;
};

struct sa_rotation sa_rotation_of(uint32_t width);

/* The code of a row's root mean square: the upper half of a float32, rounded up. */
int32_t sa_rms_code(const struct sa_coding *coding, const uint8_t *values, uint64_t count);

/* Room for a row's values of this thread. */
float *sa_rotation_row(void);

/* row = rotated factor * values, zeros behind the first `count`. */
void sa_rotate(const struct sa_rotation *rotation, const sa_float32_at *values, uint32_t count, double factor,
               float *row);

/* values = the first `count` of factor * what rotates to `row`, which is overwritten. */
void sa_rotate_back(const struct sa_rotation *rotation, float *row, double factor, sa_float32_at *values,
                    uint32_t count);

/* The rotated row of `count` values and an agreed code, in units of `reach` rms; zeros under a code of zeros. */
float *sa_rotated(const struct sa_coding *coding, const uint8_t *values, uint32_t count, int16_t code, double reach);

/* Rotate `row` back, which is overwritten: values are zeros under a code of zeros, NaN under that of NaN (F4). */
void sa_from_rotated(const struct sa_coding *coding, float *row, uint8_t *values, uint32_t count, int16_t code,
                     double reach);
