/* See outbox.h. */
#include "transport/native/hosts/outbox.h"

#include <errno.h>
#include <stdlib.h>

struct sa_message *sa_messages_take(struct sa_messages *messages, uint8_t kind, uint32_t head_bytes,
                                    uint64_t size_bytes) {
    struct sa_message *message = messages->unused;
    if (message)
        messages->unused = message->next;
    else if (!(message = malloc(sizeof *message)))
        return NULL;
    message->next = NULL;
    message->running = NULL;
    message->is_credited = message->is_last = false;
    message->size_bytes = size_bytes;
    message->start_bytes = SA_MESSAGE_HEADER_BYTES + head_bytes;
    uint8_t header[SA_MESSAGE_HEADER_BYTES] = {kind, (uint8_t)head_bytes, 0, 0, (uint8_t)(size_bytes >> 24),
                                       (uint8_t)(size_bytes >> 16), (uint8_t)(size_bytes >> 8), (uint8_t)size_bytes};
    for (uint32_t i = 0; i < SA_MESSAGE_HEADER_BYTES; i++) message->start[i] = header[i];
    return message;
}

void sa_messages_give(struct sa_messages *messages, struct sa_message *message) {
    message->next = messages->unused;
    messages->unused = message;
}

void sa_messages_free(struct sa_message *first) {
    for (struct sa_message *next; first; first = next) {
        next = first->next;
        free(first);
    }
}

static bool before(const struct sa_waiting *a, const struct sa_waiting *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->sequence < b->sequence;
}

int sa_outbox_push(struct sa_outbox *outbox, struct sa_message *message, int32_t priority) {
    if (outbox->count == outbox->room) {
        uint32_t room = outbox->room ? 2 * outbox->room : 64;
        struct sa_waiting *heap = realloc(outbox->heap, room * sizeof *heap);
        if (!heap) return -ENOMEM;
        outbox->heap = heap;
        outbox->room = room;
    }
    struct sa_waiting entry = {priority, outbox->sequence++, message};
    uint32_t at = outbox->count++;
    for (; at && before(&entry, &outbox->heap[(at - 1) / 2]); at = (at - 1) / 2)
        outbox->heap[at] = outbox->heap[(at - 1) / 2];
    outbox->heap[at] = entry;
    return 0;
}

struct sa_message *sa_outbox_pop(struct sa_outbox *outbox, int64_t credit_bytes) {
    if (!outbox->count) return NULL;
    struct sa_waiting *heap = outbox->heap;
    if (credit_bytes >= 0 && outbox->below_bytes >= credit_bytes && heap->priority > SA_URGENT) return NULL;
    struct sa_message *first = heap->message;
    struct sa_waiting last = heap[--outbox->count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= outbox->count) break;
        if (child + 1 < outbox->count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    first->is_credited = true;
    outbox->below_bytes += (int64_t)first->size_bytes;
    return first;
}

void sa_outbox_free(struct sa_outbox *outbox) {
    for (uint32_t i = 0; i < outbox->count; i++) free(outbox->heap[i].message);
    free(outbox->heap);
    *outbox = (struct sa_outbox){0};
}
