/* See directory.h. */
#include "transport/native/network/directory.h"

#include <stdlib.h>
#include <string.h>

#define SIZE_MIN 64u

static uint32_t hash_of(const struct sa_address *address) {
    uint64_t words[3], hash = 0;
    memcpy(words, address, sizeof words);
    for (int i = 0; i < 3; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

/* The entry of an address, or the free entry where it would be inserted. */
static struct sa_entry *entry_of(const struct sa_directory *directory, const struct sa_address *address) {
    for (uint32_t i = hash_of(address);; i++) {
        struct sa_entry *entry = &directory->entries[i & (directory->size - 1)];
        if (!entry->value || !memcmp(&entry->address, address, sizeof *address)) return entry;
    }
}

void *sa_directory_find(const struct sa_directory *directory, const struct sa_address *address) {
    return directory->count ? entry_of(directory, address)->value : NULL;
}

/* Move all entries to a new table of `size` entries, which may be the present size. Returns 0, or -1 without memory. */
static int resize(struct sa_directory *directory, uint32_t size) {
    struct sa_directory moved = {calloc(size, sizeof *moved.entries), size, directory->count};
    if (!moved.entries) return -1;
    for (uint32_t i = 0; i < directory->size; i++)
        if (directory->entries[i].value) *entry_of(&moved, &directory->entries[i].address) = directory->entries[i];
    free(directory->entries);
    *directory = moved;
    return 0;
}

int sa_directory_add(struct sa_directory *directory, const struct sa_address *address, void *value) {
    if (2 * (directory->count + 1) > directory->size && resize(directory, directory->size ? 2 * directory->size : SIZE_MIN))
        return -1;
    *entry_of(directory, address) = (struct sa_entry){*address, value};
    directory->count++;
    return 0;
}

void sa_directory_remove(struct sa_directory *directory, const struct sa_address *address) {
    if (!sa_directory_find(directory, address)) return;
    uint32_t mask = directory->size - 1;
    uint32_t i = (uint32_t)(entry_of(directory, address) - directory->entries);
    directory->entries[i].value = NULL;
    directory->count--;
    for (i = (i + 1) & mask; directory->entries[i].value; i = (i + 1) & mask) { /* reinsert the rest of its run */
        struct sa_entry moved = directory->entries[i];
        directory->entries[i].value = NULL;
        *entry_of(directory, &moved.address) = moved;
    }
}

void sa_directory_free(struct sa_directory *directory) {
    free(directory->entries);
    *directory = (struct sa_directory){0};
}
