/* Arrays that double when they are full. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Whether an array of `count` entries, `size` bytes each, takes one more; it is made longer where it must be. array: the
   address of the pointer to its entries. first: how many it gets at first. Without memory nothing changes. */
static inline bool sa_takes_one(void *array, uint32_t count, uint32_t *room, uint32_t first, size_t size) {
    if (count < *room) return true;
    uint32_t more = *room ? 2 * *room : first;
    void *entries;
    memcpy(&entries, array, sizeof entries);
    if (!(entries = realloc(entries, more * size))) return false;
    memcpy(array, &entries, sizeof entries);
    *room = more;
    return true;
}
