#include "emulation/sim/native/message.h"

#include <stdlib.h>
#include <string.h>

struct sim_message *sim_message_new(struct sim_messages *messages, uint32_t head_bytes, const uint8_t *values,
                                    uint64_t size_bytes) {
    struct sim_message *message = values ? NULL : messages->idle;
    if (message)
        messages->idle = message->next;
    else if (!(message = malloc(sizeof *message + (values ? size_bytes : 0))))
        return NULL;
    message->reliable.tag = message->reliable.head_bytes = head_bytes;
    message->reliable.size_bytes = head_bytes + size_bytes;
    message->reliable.data = values ? memcpy(message->bytes, values, size_bytes) : NULL;
    message->next = NULL;
    message->call = NULL;
    message->holders = 1;
    return message;
}

void sim_message_let_go(struct sim_messages *messages, struct sim_message *message) {
    if (--message->holders) return;
    if (message->reliable.data) {
        free(message);
        return;
    }
    message->next = messages->idle;
    messages->idle = message;
}

void sim_messages_free(struct sim_messages *messages) {
    for (struct sim_message *message = messages->idle, *next; message; message = next) {
        next = message->next;
        free(message);
    }
}
