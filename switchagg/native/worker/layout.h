/* Where a call's values lie in its data chunks, and whose they are (W3, W13 and W14), as
   switchagg/layout.py: computed from the number of a data chunk, with nothing stored. */
#pragma once

#include "switchagg/native/worker/endpoint.h"

struct sa_layout {
    uint64_t count; /* values */
    uint64_t units; /* of `unit` values, which lie in the same shard */
    uint64_t first; /* row of each shard, */
    uint64_t rows;  /* and how many of each there are */
    uint64_t chunks;
    uint32_t unit, width;
    uint32_t shards, owner;
    uint32_t run; /* rows of a shard that follow each other */
};

/* A data chunk carries `count` values from `low` on, which may be none. */
struct sa_span {
    uint64_t low;
    uint32_t count;
    uint32_t owner;
};

/* a / b: in 32 bits where they suffice, which takes half the time on many processors. */
static inline uint64_t sa_quotient(uint64_t a, uint64_t b) { return (a | b) >> 32 ? a / b : (uint32_t)a / (uint32_t)b; }

static inline void sa_layout_init(struct sa_layout *layout, uint64_t count, uint32_t unit, uint32_t owner,
                                  uint32_t workers, uint32_t run) {
    *layout = (struct sa_layout){.count = count, .unit = unit, .units = count / unit, .owner = owner};
    layout->shards = owner == SA_EACH_RANK ? workers : 1;
    layout->run = run ? run : 1;
}

static inline void sa_layout_begin(struct sa_layout *layout, uint32_t width) {
    uint64_t longest = (layout->units + layout->shards - 1) / layout->shards * layout->unit;
    layout->width = width;
    if (!layout->rows) layout->rows = (longest + width - 1) / width; /* not a part of a split call (W11) */
    layout->chunks = layout->rows * layout->shards;
}

/* Returns the first unit of a shard: shard * units / shards, without an overflow. */
static inline uint64_t sa_shard_begin(const struct sa_layout *layout, uint32_t shard) {
    uint64_t shard_units = layout->units / layout->shards;
    uint32_t rest = (uint32_t)(layout->units % layout->shards);
    return shard * shard_units + shard * rest / layout->shards;
}

static inline struct sa_span sa_layout_span(const struct sa_layout *layout, uint64_t chunk) {
    uint64_t begin = 0, end = layout->count, row = chunk;
    uint32_t owner = layout->owner;
    if (owner == SA_EACH_RANK) {
        uint64_t turn = sa_quotient(chunk, (uint64_t)layout->run * layout->shards), first = turn * layout->run;
        uint64_t rest = chunk - first * layout->shards;
        uint64_t rows = layout->rows - first < layout->run ? layout->rows - first : layout->run;
        owner = (uint32_t)sa_quotient(rest, rows);
        row = first + rest - owner * rows;
        begin = sa_shard_begin(layout, owner) * layout->unit;
        end = sa_shard_begin(layout, owner + 1) * layout->unit;
    }
    struct sa_span span = {begin + (layout->first + row) * layout->width, 0, owner};
    if (span.low > end) span.low = end;
    span.count = (uint32_t)(end - span.low < layout->width ? end - span.low : layout->width);
    return span;
}
