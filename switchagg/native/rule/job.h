/* A job as the C core sees it; Python's JobConfig has validated every number. */
#pragma once

#include "switchagg/native/rule/packet_terms.h"
#include "switchagg/native/rule/wire.h"

struct sa_stream {
    uint32_t first_slot;
    uint32_t window; /* slots */
    int32_t priority; /* lower is more urgent */
};

/* streams points to `stream_count` entries that need only live during a call. */
struct sa_job {
    uint32_t job_id;
    uint32_t generation;
    uint32_t workers;
    uint32_t elements;
    uint32_t stream_count;
    uint32_t retry_limit;
    uint32_t partial; /* whether sums are (Q1) */
    int64_t rto_initial_ns;
    int64_t rto_min_ns;
    int64_t rto_max_ns;
    const struct sa_stream *streams;
    SA_PACKET_TERMS
};
