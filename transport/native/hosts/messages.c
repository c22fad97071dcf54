/* See messages.h. */
#include "transport/native/hosts/messages.h"

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
