/* Memory for messages that can't be received into their place; the last one given back is taken first: it is the
   likeliest to be in the cache. */
#pragma once

#include <stdint.h>

struct sa_spare {
    struct sa_spare *next;
    uint64_t size_bytes;
    _Alignas(64) uint8_t data[];
};

struct sa_spares {
    struct sa_spare *first;
    uint32_t count;
    uint64_t size_bytes;
};

/* Returns NULL without memory. */
struct sa_spare *sa_spares_take(struct sa_spares *spares, uint64_t size_bytes);

/* spares: NULL if they are gone already. spare: may be NULL. */
void sa_spares_give(struct sa_spares *spares, struct sa_spare *spare);

void sa_spares_free(struct sa_spares *spares);
