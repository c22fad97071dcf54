/* Compiles a plan into a program: the same nodes, in the same order, as tests/oracles/compiled_plan.py. */
#pragma once

#include <stdint.h>

#include "transport/native/hosts/execution.h"

/* A plan's operations one after the other: fields[i] of operation i, in `values`. 4: a Send (step, to, low, high),
   5: a Receive (step, sender, low, high, whether it combines), 3: a Local (low, high, source). Ranges in elements. */
struct sa_operations {
    const uint8_t *fields;
    const int64_t *values;
    uint32_t count, members;
    uint64_t elements; /* of the array, without scratch */
};

/* Ranges are cut into segments of at most segment_bytes, at least an element. NULL: no memory; or a step is listed
   twice, which no plan does. */
struct sa_program *sa_program_compile(const struct sa_operations *operations, uint32_t itemsize,
                                      uint32_t segment_bytes);

/* The program of member `turn` of a plan that looks alike from all members: its operations are member 0's with `turn`
   added to all members and to the numbers of the pieces of the array, as many as members. It uses the memory of member
   0's program, `first`. Pieces must have elements, and all the same number of segments. Returns NULL without memory. */
struct sa_program *sa_program_turned(const struct sa_program *first, uint32_t turn);
void sa_program_free(struct sa_program *program);
