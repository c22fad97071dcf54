/* The arithmetic of a parameter server on a slice, bit for bit as transport/ps/ps_arithmetic.py does it in NumPy: one
   rounding per operation, in the order written there, so nothing here may be contracted to fused multiply-adds. Arrays
   may have any alignment and must not overlap. */
#pragma once

#include <stdint.h>

struct sa_ps_step {
    double learning_rate, momentum, weight_decay, compensation;
};

/* total += values; dtype as enum sa_dtype; integers wrap. */
void sa_ps_add(uint32_t dtype, uint8_t *total, const uint8_t *values, uint64_t count);

/* values /= divisor; of floats. */
void sa_ps_divide(uint32_t dtype, uint8_t *values, uint64_t count, double divisor);

/* Does one step of SGD on floats: compensated for delay if there is a backup, which becomes the new weights; with
   momentum if there is a velocity; with decay if it isn't 0. The gradient is not changed. */
void sa_ps_step(uint32_t dtype, const struct sa_ps_step *step, uint8_t *weights, uint8_t *velocity, uint8_t *backup,
                const uint8_t *gradient, uint64_t count);
