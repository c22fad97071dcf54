/* Memory regions: which bytes of this process may be read or written under which key. It is pure; the caller locks it.

   A key is (index in the table) << 8 | a byte that differs from the last one of this index, never 0; so the key of a
   deregistered region is recognised as wrong for the next 255 regions of its index. lkey and rkey are the same number;
   rkey is 0 for a region that a peer may not touch. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* As in libibverbs. Reading memory for sends needs none. */
enum sa_rdma_access { SA_ACCESS_LOCAL_WRITE = 1, SA_ACCESS_REMOTE_WRITE = 2 };

#define SA_REGIONS_MAX (1u << 20)

struct sa_region {
    uint8_t *memory;  /* peers use the same address */
    uint64_t length;
    uint32_t key;     /* 0: free */
    uint32_t domain;  /* protection domain */
    uint32_t access;
    uint32_t uses;    /* work requests not yet completed that use it */
    uint8_t last;     /* low byte of the last key with this index */
};

struct sa_memory {
    struct sa_region *regions;
    uint32_t capacity;
    uint32_t free_hint;
};

/* Allocates nothing. */
void sa_memory_init(struct sa_memory *memory);
void sa_memory_clear(struct sa_memory *memory);

/* The key of a new region, or 0: no memory, or SA_REGIONS_MAX exist. Remote write requires local write. */
uint32_t sa_memory_register(struct sa_memory *memory, uint32_t domain, uint8_t *bytes, uint64_t length, uint32_t access);

/* 0; -EINVAL: unknown key; -EBUSY: work requests still use it. */
int sa_memory_forget(struct sa_memory *memory, uint32_t key);

/* Whether a region of this domain exists; it may not be freed then. */
bool sa_memory_uses_domain(const struct sa_memory *memory, uint32_t domain);

/* The region of a key, NULL if there is none. */
struct sa_region *sa_memory_find(const struct sa_memory *memory, uint32_t key);

/* Where `length` bytes at `address` lie, if the key is right and its region is of this domain, allows all of `access`
   and contains all those bytes; else NULL. A length of 0 must lie within the region or at its end. */
uint8_t *sa_memory_reach(const struct sa_memory *memory, uint32_t domain, uint32_t key, uint64_t address,
                         uint64_t length, uint32_t access);
