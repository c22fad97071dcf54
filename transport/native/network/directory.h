/* A hash table from addresses to what the caller keeps for each: finds the sender of a packet in constant time. */
#pragma once

#include "transport/native/network/udp.h"

struct sa_entry {
    struct sa_address address;
    void *value; /* NULL: free */
};

/* Begins as zeros. It uses open addressing, and is at most half full. */
struct sa_directory {
    struct sa_entry *entries;
    uint32_t size; /* a power of two */
    uint32_t count;
};

/* NULL: the address is not in the table. */
void *sa_directory_find(const struct sa_directory *directory, const struct sa_address *address);
/* The address must be new, `value` not NULL. Returns 0, or -1 without memory, and nothing has changed. */
int sa_directory_add(struct sa_directory *directory, const struct sa_address *address, void *value);
void sa_directory_remove(struct sa_directory *directory, const struct sa_address *address);
void sa_directory_free(struct sa_directory *directory);
