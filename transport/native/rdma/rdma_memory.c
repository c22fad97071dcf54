#include "transport/native/rdma/rdma_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PLACES_FIRST 16u

void sa_memory_init(struct sa_memory *memory) { *memory = (struct sa_memory){0}; }

void sa_memory_clear(struct sa_memory *memory) {
    free(memory->regions);
    sa_memory_init(memory);
}

static bool grow(struct sa_memory *memory) {
    uint32_t capacity = memory->capacity ? 2 * memory->capacity : PLACES_FIRST;
    if (capacity > SA_REGIONS_MAX) return false;
    struct sa_region *regions = realloc(memory->regions, capacity * sizeof *regions);
    if (!regions) return false;
    memset(regions + memory->capacity, 0, (capacity - memory->capacity) * sizeof *regions);
    memory->regions = regions;
    memory->capacity = capacity;
    return true;
}

uint32_t sa_memory_register(struct sa_memory *memory, uint32_t domain, uint8_t *bytes, uint64_t length,
                            uint32_t access) {
    uint32_t index = memory->free_hint;
    while (index < memory->capacity && memory->regions[index].key) index++;
    if (index == memory->capacity && !grow(memory)) return 0;
    struct sa_region *region = &memory->regions[index];
    memory->free_hint = index + 1;
    region->last = region->last == 255 ? 1 : (uint8_t)(region->last + 1);
    region->memory = bytes;
    region->length = length;
    region->key = index << 8 | region->last;
    region->domain = domain;
    region->access = access;
    region->uses = 0;
    return region->key;
}

struct sa_region *sa_memory_find(const struct sa_memory *memory, uint32_t key) {
    uint32_t index = key >> 8;
    if (!key || index >= memory->capacity || memory->regions[index].key != key) return NULL;
    return &memory->regions[index];
}

int sa_memory_forget(struct sa_memory *memory, uint32_t key) {
    struct sa_region *region = sa_memory_find(memory, key);
    if (!region) return -EINVAL;
    if (region->uses) return -EBUSY;
    region->key = 0;
    region->memory = NULL;
    if (key >> 8 < memory->free_hint) memory->free_hint = key >> 8;
    return 0;
}

bool sa_memory_uses_domain(const struct sa_memory *memory, uint32_t domain) {
    for (uint32_t index = 0; index < memory->capacity; index++)
        if (memory->regions[index].key && memory->regions[index].domain == domain) return true;
    return false;
}

uint8_t *sa_memory_reach(const struct sa_memory *memory, uint32_t domain, uint32_t key, uint64_t address,
                         uint64_t length, uint32_t access) {
    const struct sa_region *region = sa_memory_find(memory, key);
    if (!region || region->domain != domain || (region->access & access) != access) return NULL;
    uint64_t from = address - (uint64_t)(uintptr_t)region->memory; /* wraps to something huge if it lies before */
    if (from > region->length || length > region->length - from) return NULL;
    return region->memory + from;
}
