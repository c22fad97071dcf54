/* Messages that wait to be sent: what is most urgent goes first, and a credit of bytes bounds what lies below. As
   transport/meshes/credit_queue.py. */
#ifndef SWITCHAGG_HOSTS_OUTBOX_H
#define SWITCHAGG_HOSTS_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#define SA_MESSAGE_HEADER_BYTES 8u
#define SA_HEAD_BYTES_MAX 64u
#define SA_START_BYTES_MAX (SA_MESSAGE_HEADER_BYTES + SA_HEAD_BYTES_MAX)

/* The priority of what waits for no credit. */
#define SA_URGENT INT32_MIN

struct sa_message {
    struct sa_message *next;
    struct sa_mesh_execution *running; /* whose it is; NULL: the caller's, who gets `ticket` back */
    int64_t ticket;             /* or the node */
    const uint8_t *data;
    uint64_t size_bytes;
    uint32_t to, flow;
    bool is_credited; /* its bytes are below */
    bool is_last;     /* no message, but that nothing follows */
    uint32_t start_bytes;
    uint8_t start[SA_START_BYTES_MAX]; /* header and head */
};

struct sa_messages {
    struct sa_message *unused;
};

/* A message whose header says how long head and data are. Returns NULL without memory. */
struct sa_message *sa_messages_take(struct sa_messages *messages, uint8_t kind, uint32_t head_bytes,
                                    uint64_t size_bytes);
void sa_messages_give(struct sa_messages *messages, struct sa_message *message);

/* Free a chain of them. */
void sa_messages_free(struct sa_message *first);

struct sa_outbox {
    struct sa_waiting {
        int32_t priority;
        uint64_t sequence;
        struct sa_message *message;
    } *heap;
    uint32_t count, room;
    uint64_t sequence;
    int64_t below_bytes;
};

/* 0, or -ENOMEM. */
int sa_outbox_push(struct sa_outbox *outbox, struct sa_message *message, int32_t priority);

/* The most urgent message, whose bytes are below from now on; NULL if none waits or the credit (negative: no bound) is
   used up. */
struct sa_message *sa_outbox_pop(struct sa_outbox *outbox, int64_t credit_bytes);

void sa_outbox_free(struct sa_outbox *outbox);

#endif
