/* See timeline.h. */
#include "transport/native/network/timeline.h"

#include <stdlib.h>

int sa_timeline_reserve(struct sa_timeline *timeline, uint32_t capacity) {
    if (capacity <= timeline->capacity) return 0;
    struct sa_timed *entries = realloc(timeline->entries, capacity * sizeof *entries);
    if (!entries) return -1;
    timeline->entries = entries;
    timeline->capacity = capacity;
    return 0;
}

void sa_timeline_free(struct sa_timeline *timeline) {
    free(timeline->entries);
    *timeline = (struct sa_timeline){0};
}

static bool before(const struct sa_timed *a, const struct sa_timed *b) {
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->sequence < b->sequence;
}

/* Sift an entry up from the hole at `index`. */
static void sift_up(struct sa_timed *entries, uint32_t index, struct sa_timed entry) {
    while (index) {
        uint32_t parent = (index - 1) / 2;
        if (!before(&entry, &entries[parent])) break;
        entries[index] = entries[parent];
        index = parent;
    }
    entries[index] = entry;
}

/* Sift an entry down from the hole at `index` of `count`. */
static void sift_down(struct sa_timed *entries, uint32_t count, uint32_t index, struct sa_timed entry) {
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= count) break;
        if (child + 1 < count && before(&entries[child + 1], &entries[child])) child++;
        if (!before(&entries[child], &entry)) break;
        entries[index] = entries[child];
        index = child;
    }
    entries[index] = entry;
}

void sa_timeline_push(struct sa_timeline *timeline, struct sa_timed entry) {
    entry.sequence = timeline->pushed++;
    sift_up(timeline->entries, timeline->count++, entry);
}

struct sa_timed sa_timeline_pop(struct sa_timeline *timeline) {
    struct sa_timed first = timeline->entries[0];
    timeline->count--;
    if (timeline->count) sift_down(timeline->entries, timeline->count, 0, timeline->entries[timeline->count]);
    return first;
}

void sa_timeline_forget(struct sa_timeline *timeline, uint32_t port, struct sa_pool *pool) {
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < timeline->count; i++) {
        struct sa_timed entry = timeline->entries[i];
        if (entry.port == port) {
            if (entry.packet) sa_pool_give(pool, entry.packet);
        } else {
            sift_up(timeline->entries, remaining++, entry); /* places up to i are free by now */
        }
    }
    timeline->count = remaining;
}
