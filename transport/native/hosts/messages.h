/* Messages of a mesh over TCP that are to be sent. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SA_MESSAGE_HEADER_BYTES 8u
#define SA_HEAD_BYTES_MAX 64u
#define SA_START_BYTES_MAX (SA_MESSAGE_HEADER_BYTES + SA_HEAD_BYTES_MAX)

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
