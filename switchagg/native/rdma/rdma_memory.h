/* Memory regions: which bytes of this process may be read or written under which key. Pure; not thread-safe.

   A key is (place in the table) << 8 | a byte that differs from the place's last one, never 0; so a key that was given
   back is known as wrong for the next 255 regions of its place. lkey and rkey are the same number; rkey is 0 for a region
   that a peer may not touch. */
#ifndef SWITCHAGG_RDMA_MEMORY_H
#define SWITCHAGG_RDMA_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* As in libibverbs. Reading memory for sends needs none. */
enum sa_rdma_access { SA_ACCESS_LOCAL_WRITE = 1, SA_ACCESS_REMOTE_WRITE = 2 };

#define SA_REGIONS_MAX (1u << 20)

struct sa_region {
    uint8_t *memory;  /* its address is also what peers say */
    uint64_t length;
    uint32_t key;     /* 0: free */
    uint32_t domain;  /* protection domain */
    uint32_t access;
    uint32_t uses;    /* work requests not yet completed that name it */
    uint8_t last;     /* low byte of the last key of this place */
};

struct sa_memory {
    struct sa_region *regions;
    uint32_t places;
    uint32_t free_hint;
};

/* Fields are set by sa_memory_init; it takes no memory yet. */
void sa_memory_init(struct sa_memory *memory);
void sa_memory_clear(struct sa_memory *memory);

/* The key of a new region, or 0: no memory, or SA_REGIONS_MAX are there. Remote write asks for local write. */
uint32_t sa_memory_register(struct sa_memory *memory, uint32_t domain, uint8_t *bytes, uint64_t length, uint32_t access);

/* 0; -EINVAL: no such key; -EBUSY: work requests still name it. */
int sa_memory_forget(struct sa_memory *memory, uint32_t key);

/* Whether a region of this domain exists; it may not be freed then. */
bool sa_memory_uses_domain(const struct sa_memory *memory, uint32_t domain);

/* The region of a key, NULL if there is none. */
struct sa_region *sa_memory_find(const struct sa_memory *memory, uint32_t key);

/* Where `length` bytes at `address` lie, if the key is right, its region of this domain, allows all of `access` and has
   all those bytes; else NULL. A length of 0 must lie within the region or at its end. */
uint8_t *sa_memory_reach(const struct sa_memory *memory, uint32_t domain, uint32_t key, uint64_t address,
                         uint64_t length, uint32_t access);

#endif
