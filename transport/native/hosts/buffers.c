/* See buffers.h. */
#include "transport/native/hosts/buffers.h"

#include <stdlib.h>

#define SPARES_MAX 32u
#define SPARE_BYTES_MAX (16u << 20)

struct sa_spare *sa_spares_take(struct sa_spares *spares, uint64_t size_bytes) {
    for (struct sa_spare **at = &spares->first; *at; at = &(*at)->next) {
        struct sa_spare *spare = *at;
        if (spare->size_bytes < size_bytes) continue;
        *at = spare->next;
        spares->count--;
        spares->size_bytes -= spare->size_bytes;
        return spare;
    }
    uint64_t rounded = (size_bytes + 63) & ~(uint64_t)63;
    struct sa_spare *fresh = aligned_alloc(64, sizeof *fresh + rounded);
    if (fresh) fresh->size_bytes = rounded;
    return fresh;
}

void sa_spares_give(struct sa_spares *spares, struct sa_spare *spare) {
    if (!spare) return;
    if (!spares || spares->count == SPARES_MAX || spares->size_bytes + spare->size_bytes > SPARE_BYTES_MAX) {
        free(spare);
        return;
    }
    spare->next = spares->first;
    spares->first = spare;
    spares->count++;
    spares->size_bytes += spare->size_bytes;
}

void sa_spares_free(struct sa_spares *spares) {
    for (struct sa_spare *spare; (spare = spares->first);) {
        spares->first = spare->next;
        free(spare);
    }
    *spares = (struct sa_spares){0};
}
