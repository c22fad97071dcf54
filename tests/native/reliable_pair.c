/* A sender and a receiver of transport/native/hosts/reliable.h for test_reliable_lockstep.py: frames have numbers, by which they are
   handed over as often, as late and in what order the test likes. */
#include <stdlib.h>
#include <string.h>

#include "transport/native/hosts/reliable.h"

#define FRAMES_MAX 20000u

struct pair {
    struct sa_reliable_config config;
    struct sa_sender sender;
    struct sa_receiver receiver;
    uint32_t connection, segments, acks;
    struct sa_segment sent[FRAMES_MAX];
    struct sa_ack acked[FRAMES_MAX];
};

struct pair *pair_new(const struct sa_reliable_config *config, uint32_t connection) {
    struct pair *pair = calloc(1, sizeof *pair);
    pair->config = *config;
    pair->connection = connection;
    sa_sender_begin(&pair->sender, &pair->config);
    sa_receiver_begin(&pair->receiver, &pair->config);
    return pair;
}

void pair_free(struct pair *pair) {
    for (struct sa_reliable_message *message = pair->sender.oldest, *next; message; message = next) {
        next = message->next;
        free(message);
    }
    sa_sender_end(&pair->sender);
    sa_receiver_end(&pair->receiver);
    free(pair);
}

void pair_submit(struct pair *pair, uint64_t tag, const uint8_t *bytes, uint64_t size_bytes, uint32_t head_bytes) {
    struct sa_reliable_message *message = malloc(sizeof *message + size_bytes);
    *message = (struct sa_reliable_message){.tag = tag, .size_bytes = size_bytes, .head_bytes = head_bytes};
    memcpy(message->head, bytes, head_bytes);
    message->data = memcpy(message + 1, bytes + head_bytes, size_bytes - head_bytes);
    sa_sender_submit(&pair->sender, message);
}

/* The next frame of the sender (acks: of the receiver) into `frame`; its length, or 0, or below 0. */
int pair_send(struct pair *pair, int acks, int64_t now_ns, uint8_t *frame) {
    int found = acks ? sa_receiver_next(&pair->receiver, now_ns, &pair->acked[pair->acks])
                     : sa_sender_next(&pair->sender, now_ns, &pair->sent[pair->segments]);
    if (found <= 0) return found;
    return (int)(acks ? sa_ack_frame(&pair->acked[pair->acks++], pair->connection, frame)
                      : sa_segment_frame(&pair->sent[pair->segments++], &pair->config, pair->connection, frame));
}

int pair_receive(struct pair *pair, int acks, uint32_t number, int64_t now_ns) {
    if (!acks) return sa_receiver_receive(&pair->receiver, &pair->sent[number], now_ns);
    int result = sa_sender_receive(&pair->sender, &pair->acked[number], now_ns);
    for (struct sa_reliable_message *message; (message = sa_sender_returned(&pair->sender));) free(message);
    return result;
}

/* The next message into `bytes`: its length, or -1. */
int64_t pair_message(struct pair *pair, uint64_t *tag, uint8_t *bytes) {
    struct sa_reliable_message *message = sa_receiver_message(&pair->receiver);
    if (!message) return -1;
    *tag = message->tag;
    memcpy(bytes, message->head, message->head_bytes);
    memcpy(bytes + message->head_bytes, message->data, message->size_bytes - message->head_bytes);
    return (int64_t)message->size_bytes;
}

int pair_handle_timers(struct pair *pair, int64_t now_ns) {
    sa_receiver_handle_timer(&pair->receiver, now_ns);
    return sa_sender_handle_timer(&pair->sender, now_ns);
}

/* Deadlines, repeats, counters. */
void pair_state(const struct pair *pair, int64_t *state) {
    *state++ = sa_sender_deadline_ns(&pair->sender);
    *state++ = pair->receiver.ack_at_ns;
    *state++ = sa_sender_repeats(&pair->sender);
    for (int i = 0; i < SA_SENDER_COUNTERS; i++) *state++ = (int64_t)pair->sender.counters[i];
    for (int i = 0; i < SA_RECEIVER_COUNTERS; i++) *state++ = (int64_t)pair->receiver.counters[i];
}
