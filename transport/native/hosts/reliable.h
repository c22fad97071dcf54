/* Messages in order, exactly once, over links that lose, repeat and reorder frames: step for step as
   transport/meshes/reliable.py, which describes it. Nothing is copied: segments name their message, which stays the
   caller's until its sender gives it back, wholly acknowledged. By then its receiver has handed it out.
   Times are in ns; a deadline of -1 is none. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "switchagg/native/worker/timeout.h"

#define SA_SACK_RANGES 3u
#define SA_RELIABLE_BYTES 32u /* the header of a frame */
#define SA_HEAD_BYTES_MAX 64u

struct sa_reliable_config {
    uint32_t segment_bytes, window_segments, ack_every_segments, retry_limit;
    int64_t rto_initial_ns, rto_min_ns, rto_max_ns, delayed_ack_ns;
};

/* size_bytes: of head and data together. data: NULL stands for zeros. The rest is set by sa_sender_submit. */
struct sa_reliable_message {
    uint64_t tag, size_bytes;
    const uint8_t *data;
    uint32_t head_bytes;
    uint8_t head[SA_HEAD_BYTES_MAX];
    uint64_t first, end;                    /* its segments' numbers: first ... end - 1 */
    struct sa_reliable_message *next;       /* of the same sender */
    struct sa_reliable_message *after;      /* of the same receiver, of those that have arrived */
};

enum sa_segment_flag { SA_SEGMENT_LAST = 1, SA_SEGMENT_PROBE = 2 };

/* The contents of a frame. message: NULL in a probe. size_bytes: the payload's. */
struct sa_segment {
    struct sa_reliable_message *message;
    uint64_t number;
    int64_t sent_ns;
    uint32_t size_bytes, flags;
};

/* lows, highs: of ranges beyond the gap at `first`, relative to it. */
struct sa_ack {
    uint64_t first;
    int64_t echo_ns;
    uint32_t count;
    uint32_t lows[SA_SACK_RANGES], highs[SA_SACK_RANGES];
};

/* In the order of the counters in Python, without those of frames that no receiver of ours can get. */
enum sa_sender_counter { SA_SENT, SA_RETRANSMITTED, SA_TIMEOUTS, SA_ACKS_IN, SA_ACK_UNKNOWN_SENDERS, SA_SENDER_COUNTERS };
enum sa_receiver_counter { SA_SEGMENTS_IN, SA_DUPLICATES, SA_ACKS_OUT, SA_BEYOND_WINDOW, SA_RECEIVER_COUNTERS };

struct sa_flight; /* one segment that was sent */

struct sa_flights {
    uint32_t first, last; /* places in the sender's ring, or SA_NO_FLIGHT */
    uint32_t count;
};

struct sa_sacked {
    uint64_t start, end;
};

struct sa_sender {
    const struct sa_reliable_config *config;
    uint64_t first, next;                            /* all below have arrived; number of the next new segment */
    struct sa_flight *flights;                       /* flights of segments first ... next - 1, by the lower bits of
                                                        numbers */
    uint32_t mask;
    bool has_probe, probe_due;
    struct sa_flights in_flight, lost;               /* by order of sending; to be sent again */
    struct sa_reliable_message *oldest, *sending, *last;
    uint64_t submitted;                              /* segments of all messages */
    int64_t order, newest, newest_ns, probe_order, probe_ns;
    struct sa_timeout timeout;
    int64_t rtt_last_ns, rtt_min_ns, late_ns, timeout_at_ns, loss_at_ns;
    struct sa_sacked *sacked;
    uint32_t sacked_count, sacked_most;
    uint32_t timeouts;
    uint64_t counters[SA_SENDER_COUNTERS];
};

struct sa_receiver {
    const struct sa_reliable_config *config;
    uint64_t expected;
    int64_t echo_ns, ack_at_ns;
    uint32_t pending;
    bool ack_now;
    uint32_t recent_count, range_count, range_most, early_mask;
    struct sa_sacked *ranges;
    struct sa_reliable_message **early; /* whose last segments are beyond a gap, by the lower bits of numbers */
    struct sa_reliable_message *arrived, **arrived_end;
    uint64_t recent[SA_SACK_RANGES];
    uint64_t counters[SA_RECEIVER_COUNTERS];
};

/* Functions return 0, or -ENOMEM. */
void sa_sender_begin(struct sa_sender *sender, const struct sa_reliable_config *config);
void sa_sender_end(struct sa_sender *sender);
void sa_sender_submit(struct sa_sender *sender, struct sa_reliable_message *message);

/* The next frame, repetitions first: 1, or 0 if there is none to send now. */
int sa_sender_next(struct sa_sender *sender, int64_t now_ns, struct sa_segment *segment);
int sa_sender_receive(struct sa_sender *sender, const struct sa_ack *ack, int64_t now_ns);

/* -ETIMEDOUT after more than retry_limit timeouts in a row. */
int sa_sender_handle_timer(struct sa_sender *sender, int64_t now_ns);

/* Fetch what the next acknowledgement will change. */
void sa_sender_look(const struct sa_sender *sender);

/* A message that is acknowledged, whose memory is the caller's again; NULL: none. */
struct sa_reliable_message *sa_sender_returned(struct sa_sender *sender);

static inline uint32_t sa_sender_repeats(const struct sa_sender *sender) {
    return sender->lost.count + sender->probe_due;
}

static inline int64_t sa_sender_deadline_ns(const struct sa_sender *sender) {
    int64_t loss_ns = sender->loss_at_ns, timeout_ns = sender->timeout_at_ns;
    return loss_ns < 0 || (timeout_ns >= 0 && timeout_ns < loss_ns) ? timeout_ns : loss_ns;
}

void sa_receiver_begin(struct sa_receiver *receiver, const struct sa_reliable_config *config);
void sa_receiver_end(struct sa_receiver *receiver);
int sa_receiver_receive(struct sa_receiver *receiver, const struct sa_segment *segment, int64_t now_ns);

/* The acknowledgement that is due: 1, or 0 for none. */
int sa_receiver_next(struct sa_receiver *receiver, int64_t now_ns, struct sa_ack *ack);
void sa_receiver_handle_timer(struct sa_receiver *receiver, int64_t now_ns);

/* Returns the next whole message in order, or NULL. */
static inline struct sa_reliable_message *sa_receiver_message(struct sa_receiver *receiver) {
    struct sa_reliable_message *message = receiver->arrived;
    if (message && !(receiver->arrived = message->after)) receiver->arrived_end = &receiver->arrived;
    return message;
}

/* A frame as it would be on a wire, of SA_RELIABLE_BYTES and the payload, or 8 per range. Returns its length. */
uint32_t sa_segment_frame(const struct sa_segment *segment, const struct sa_reliable_config *config,
                          uint32_t connection, uint8_t *frame);
uint32_t sa_ack_frame(const struct sa_ack *ack, uint32_t connection, uint8_t *frame);
