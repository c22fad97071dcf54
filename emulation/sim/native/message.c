#include "emulation/sim/native/message.h"

#include <stdlib.h>
#include <string.h>

struct sim_message *sim_message_new(struct sa_sim *sim, uint32_t head_bytes, const uint8_t *values, uint64_t size_bytes) {
    struct sim_message *message = values ? NULL : sim->idle_messages;
    if (message)
        sim->idle_messages = message->next;
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

void sim_message_let_go(struct sa_sim *sim, struct sim_message *message) {
    if (__atomic_sub_fetch(&message->holders, 1, __ATOMIC_ACQ_REL)) return;
    if (message->reliable.data) {
        free(message);
        return;
    }
    message->next = sim->idle_messages;
    sim->idle_messages = message;
}

void sim_messages_free(struct sa_sim *sim) {
    for (struct sim_message *message = sim->idle_messages, *next; message; message = next) {
        next = message->next;
        free(message);
    }
}
