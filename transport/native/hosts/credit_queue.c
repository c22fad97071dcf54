#include "transport/native/hosts/credit_queue.h"

#include <errno.h>

#include "switchagg/native/room.h"

#define ROOM_FIRST 16u

static bool goes_before(const struct sa_credit_waiting *entry, const struct sa_credit_waiting *other) {
    return entry->priority < other->priority || (entry->priority == other->priority && entry->sequence < other->sequence);
}

int sa_credit_queue_push(struct sa_credit_queue *queue, struct sa_credit_waiting entry) {
    if (!sa_takes_one(&queue->heap, queue->count, &queue->room, ROOM_FIRST, sizeof entry)) return -ENOMEM;
    struct sa_credit_waiting *heap = queue->heap;
    uint32_t at = queue->count++;
    entry.sequence = queue->sequence++;
    for (; at && goes_before(&entry, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
    return 0;
}

bool sa_credit_queue_pop(struct sa_credit_queue *queue, int64_t credit_bytes, struct sa_credit_waiting *entry) {
    struct sa_credit_waiting *heap = queue->heap;
    if (!queue->count) return false;
    if (credit_bytes >= 0 && queue->below_bytes >= credit_bytes && heap->priority > SA_URGENT) return false;
    *entry = *heap;
    struct sa_credit_waiting last = heap[--queue->count];
    uint32_t at = 0;
    for (uint32_t below = 1; below < queue->count; below = 2 * at + 1) {
        if (below + 1 < queue->count && goes_before(&heap[below + 1], &heap[below])) below++;
        if (!goes_before(&heap[below], &last)) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = last;
    return true;
}
