#include "transport/native/hosts/ps_sum.h"

#include <stddef.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

/* A slice of a message has any alignment. */
typedef uint64_t SA_ANYWHERE sa_uint64_at;

#define SA_ADD(name, type)                                                                                             \
    SA_VECTORISED static void sa_add_##name(type *restrict total, const type *restrict values, uint64_t count) {       \
        for (uint64_t i = 0; i < count; i++)                                                                           \
            total[i] += values[i];                                                                                     \
    }

SA_ADD(float32, sa_float32_at)
SA_ADD(float64, sa_float64_at)
SA_ADD(uint32, sa_uint32_at)
SA_ADD(uint64, sa_uint64_at)

SA_EXPORT void sa_ps_add(uint32_t dtype, uint8_t *total, const uint8_t *values, uint64_t count) {
    switch (dtype) {
    case SA_FLOAT32: sa_add_float32((sa_float32_at *)total, (const sa_float32_at *)values, count); break;
    case SA_FLOAT64: sa_add_float64((sa_float64_at *)total, (const sa_float64_at *)values, count); break;
    case SA_INT32: sa_add_uint32((sa_uint32_at *)total, (const sa_uint32_at *)values, count); break;
    case SA_INT64: sa_add_uint64((sa_uint64_at *)total, (const sa_uint64_at *)values, count); break;
    default: break;
    }
}

#define SA_DIVIDE(name, type, value)                                                        \
    SA_VECTORISED static void sa_divide_##name(type *values, uint64_t count, value divisor) { \
        for (uint64_t i = 0; i < count; i++)                                                \
            values[i] /= divisor;                                                           \
    }

SA_DIVIDE(float32, sa_float32_at, float)
SA_DIVIDE(float64, sa_float64_at, double)

SA_EXPORT void sa_ps_divide(uint32_t dtype, uint8_t *values, uint64_t count, double divisor) {
    if (dtype == SA_FLOAT32)
        sa_divide_float32((sa_float32_at *)values, count, (float)divisor);
    else if (dtype == SA_FLOAT64)
        sa_divide_float64((sa_float64_at *)values, count, divisor);
}

/* Velocity and backup are known to be there or not outside the loops: so the compiler vectorises each of the four. */
#define SA_STEP_LOOP(compensate, accelerate)                                                 \
    for (uint64_t i = 0; i < count; i++) {                                                   \
        __typeof__(lr) g = gradient[i], w = weights[i];                                      \
        if (compensate)                                                                      \
            g = g + lambda * g * g * (w - backup[i]);                                        \
        if (decays)                                                                          \
            g = g + decay * w;                                                               \
        if (accelerate) {                                                                    \
            g = momentum * velocity[i] + g;                                                  \
            velocity[i] = g;                                                                 \
        }                                                                                    \
        w = w - lr * g;                                                                      \
        weights[i] = w;                                                                      \
        if (compensate)                                                                      \
            backup[i] = w;                                                                   \
    }

#define SA_STEP(name, type, value)                                                                                     \
    SA_VECTORISED static void sa_step_##name(const struct sa_ps_step *step, type *restrict weights,                    \
                                             type *restrict velocity, type *restrict backup,                           \
                                             const type *restrict gradient, uint64_t count) {                          \
        value lr = (value)step->learning_rate, momentum = (value)step->momentum;                                       \
        value decay = (value)step->weight_decay, lambda = (value)step->compensation;                                   \
        int decays = step->weight_decay != 0;                                                                          \
        if (backup && velocity) {                                                                                      \
            SA_STEP_LOOP(1, 1)                                                                                         \
        } else if (backup) {                                                                                           \
            SA_STEP_LOOP(1, 0)                                                                                         \
        } else if (velocity) {                                                                                         \
            SA_STEP_LOOP(0, 1)                                                                                         \
        } else {                                                                                                       \
            SA_STEP_LOOP(0, 0)                                                                                         \
        }                                                                                                              \
    }

SA_STEP(float32, sa_float32_at, float)
SA_STEP(float64, sa_float64_at, double)

SA_EXPORT void sa_ps_step(uint32_t dtype, const struct sa_ps_step *step, uint8_t *weights, uint8_t *velocity,
                          uint8_t *backup, const uint8_t *gradient, uint64_t count) {
    if (dtype == SA_FLOAT32)
        sa_step_float32(step, (sa_float32_at *)weights, (sa_float32_at *)velocity, (sa_float32_at *)backup,
                        (const sa_float32_at *)gradient, count);
    else if (dtype == SA_FLOAT64)
        sa_step_float64(step, (sa_float64_at *)weights, (sa_float64_at *)velocity, (sa_float64_at *)backup,
                        (const sa_float64_at *)gradient, count);
}
