#include "emulation/sim/native/frames.h"

#include <stdlib.h>
#include <string.h>

#include "transport/native/roce/roce_crc.h"

/* Bodies of frames have this behind their head. crc: of the bytes that the frame stands for, if there is a trace. */
struct data_frame {
    struct sa_reliable_message *message;
    int64_t sent_ns;
    uint64_t number_and_flags;
    uint32_t crc;
};

struct ack_frame {
    uint64_t first_and_count;
    int64_t echo_ns;
    uint32_t crc, ranges[2 * SA_SACK_RANGES];
};

_Static_assert(sizeof(struct sim_body) % 8 == 0, "what follows it is aligned");

static uint32_t data_digest(const struct sim_body *body) {
    return ((const struct data_frame *)(body + 1))->crc;
}

static uint32_t ack_digest(const struct sim_body *body) {
    return ((const struct ack_frame *)(body + 1))->crc;
}

static const struct sim_body_kind DATA = {.digest = data_digest}, ACK = {.digest = ack_digest};

static struct sim_body *new_frame(struct sa_sim *sim, const struct sim_body_kind *kind, uint32_t held,
                                  uint32_t length) {
    uint32_t room = (uint32_t)(sizeof(struct sim_body) - offsetof(struct sim_body, data)) + held;
    struct sim_body *body = sim_body(sim, room);
    if (!body) return NULL;
    body->kind = kind;
    body->held = room;
    body->length = length;
    body->wire_bytes = length + SIM_MESSAGE_FRAMING_BYTES;
    return body;
}

struct sim_body *sim_data_frame(struct sa_sim *sim, const struct sa_segment *segment,
                                const struct sa_reliable_config *config, uint32_t connection) {
    uint32_t held = sim->traced_bytes ? sizeof(struct data_frame) : offsetof(struct data_frame, crc);
    struct sim_body *body = new_frame(sim, &DATA, held, SA_RELIABLE_BYTES + segment->size_bytes);
    if (!body) return NULL;
    struct data_frame *frame = (struct data_frame *)(body + 1);
    frame->message = segment->message;
    frame->sent_ns = segment->sent_ns;
    frame->number_and_flags = segment->number << 2 | segment->flags;
    if (!sim->traced_bytes) return body;
    uint8_t *bytes = malloc(body->length);
    if (!bytes) {
        sim->queue.lacking = 1;
        return body;
    }
    frame->crc = sa_crc32(0, bytes, sa_segment_frame(segment, config, connection, bytes));
    free(bytes);
    return body;
}

struct sim_body *sim_ack_frame(struct sa_sim *sim, const struct sa_ack *ack, uint32_t connection) {
    uint32_t held = offsetof(struct ack_frame, ranges) + 8 * ack->count;
    struct sim_body *body = new_frame(sim, &ACK, held, SA_RELIABLE_BYTES + 8 * ack->count);
    if (!body) return NULL;
    struct ack_frame *frame = (struct ack_frame *)(body + 1);
    frame->first_and_count = ack->first << 2 | ack->count;
    frame->echo_ns = ack->echo_ns;
    memcpy(frame->ranges, ack->lows, 4 * ack->count);
    memcpy(frame->ranges + ack->count, ack->highs, 4 * ack->count);
    if (sim->traced_bytes) {
        uint8_t bytes[SA_RELIABLE_BYTES + 8 * SA_SACK_RANGES];
        frame->crc = sa_crc32(0, bytes, sa_ack_frame(ack, connection, bytes));
    }
    return body;
}

bool sim_has_segment(const struct sim_body *body) { return body->kind == &DATA; }

struct sa_segment sim_segment_in(const struct sim_body *body) {
    const struct data_frame *frame = (const struct data_frame *)(body + 1);
    return (struct sa_segment){frame->message, frame->number_and_flags >> 2, frame->sent_ns,
                               body->length - SA_RELIABLE_BYTES, frame->number_and_flags & 3};
}

struct sa_ack sim_ack_in(const struct sim_body *body) {
    const struct ack_frame *frame = (const struct ack_frame *)(body + 1);
    struct sa_ack ack = {.first = frame->first_and_count >> 2, .echo_ns = frame->echo_ns,
                         .count = frame->first_and_count & 3};
    memcpy(ack.lows, frame->ranges, 4 * ack.count);
    memcpy(ack.highs, frame->ranges + ack.count, 4 * ack.count);
    return ack;
}
