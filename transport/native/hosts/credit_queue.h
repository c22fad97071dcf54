/* The most urgent message goes first, and a credit bounds the bytes below the queue: as
   transport/meshes/credit_queue.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The priority of what waits for no credit. */
#define SA_URGENT INT32_MIN

/* item: a message, or, with a node, the call whose node it is. */
struct sa_credit_waiting {
    int32_t priority;
    uint32_t node;
    uint64_t sequence;
    void *item;
};

struct sa_credit_queue {
    struct sa_credit_waiting *heap;
    uint32_t count, room;
    uint64_t sequence;
    int64_t below_bytes;
};

/* 0, or -ENOMEM. */
int sa_credit_queue_push(struct sa_credit_queue *queue, struct sa_credit_waiting entry);

/* The most urgent, if the credit allows; negative: no bound. The caller adds the bytes that the message takes of it. */
bool sa_credit_queue_pop(struct sa_credit_queue *queue, int64_t credit_bytes, struct sa_credit_waiting *entry);
