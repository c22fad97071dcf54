/* See qp.h: the responder. */
#include <string.h>

#include "transport/native/roce/qp.h"

/* Outcome of a packet with the expected PSN. */
enum outcome { DONE, NOT_READY, INVALID, NO_ACCESS, TOO_LONG, UNREACHABLE };

#define SENDING SA_ROCE_STARTS /* sa_qp.verb */
#define WRITING (SA_ROCE_STARTS | SA_ROCE_WRITES)
#define AHEAD_MOST 256 /* packets missing before one that UC takes alone */

/* ---- one packet with the expected PSN */

static bool well_formed(const struct sa_qp *qp, const struct sa_roce_packet *packet) {
    uint32_t verb = packet->shape & SA_ROCE_WRITES ? WRITING : SENDING;
    if (packet->shape & SA_ROCE_UNSUPPORTED) return false;
    if (packet->shape & SA_ROCE_STARTS ? qp->verb != 0 : qp->verb != verb) return false;
    if (!(packet->shape & SA_ROCE_ENDS)) return packet->payload_bytes == qp->attributes.path_mtu;
    return packet->payload_bytes <= qp->attributes.path_mtu && (packet->payload_bytes || packet->shape & SA_ROCE_STARTS);
}

static bool receive_posted(const struct sa_qp *qp) { return qp->receive_head < qp->receive_tail; }

static void finish(struct sa_qp *qp, const struct sa_roce_packet *packet, uint32_t opcode) {
    bool immediate = packet->shape & SA_ROCE_IMMEDIATE;
    sa_qp_finish_receive(qp, &(struct sa_completion){
                                 .opcode = opcode,
                                 .bytes = (uint32_t)qp->message_bytes,
                                 .immediate = immediate ? packet->immediate : 0,
                                 .flags = immediate ? SA_WC_WITH_IMMEDIATE : 0,
                             });
}

static enum outcome take_send(struct sa_qp *qp, const struct sa_roce_packet *packet) {
    if (!receive_posted(qp)) return NOT_READY;
    const struct sa_receive_request *receive = &qp->receives[qp->receive_head % qp->receive_depth];
    uint64_t before = packet->shape & SA_ROCE_STARTS ? 0 : qp->message_bytes;
    if (before + packet->payload_bytes > receive->length) return TOO_LONG;
    if (packet->payload_bytes) {
        uint8_t *memory = sa_memory_reach(qp->memory, qp->domain, receive->lkey, receive->address + before,
                                         packet->payload_bytes, SA_ACCESS_LOCAL_WRITE);
        if (!memory) return UNREACHABLE;
        memcpy(memory, packet->payload, packet->payload_bytes);
    }
    qp->message_bytes = before + packet->payload_bytes;
    qp->verb = packet->shape & SA_ROCE_ENDS ? 0 : SENDING;
    if (packet->shape & SA_ROCE_ENDS) finish(qp, packet, SA_WC_RECEIVE);
    return DONE;
}

/* A write begins: the peer must be allowed to write its whole range. */
static enum outcome begin_write(struct sa_qp *qp, const struct sa_roce_packet *packet) {
    if (packet->length > SA_MESSAGE_MAX || !(qp->attributes.access & SA_ACCESS_REMOTE_WRITE)) return INVALID;
    if (packet->length && !sa_memory_reach(qp->memory, qp->domain, packet->rkey, packet->address, packet->length,
                                           SA_ACCESS_REMOTE_WRITE))
        return NO_ACCESS;
    qp->write_key = packet->rkey;
    qp->write_address = packet->address;
    qp->message_bytes = 0;
    qp->message_left = packet->length;
    return DONE;
}

static enum outcome take_write(struct sa_qp *qp, const struct sa_roce_packet *packet) {
    bool ends = packet->shape & SA_ROCE_ENDS, immediate = packet->shape & SA_ROCE_IMMEDIATE;
    if (packet->shape & SA_ROCE_STARTS) {
        enum outcome start = begin_write(qp, packet);
        if (start != DONE) return start;
    }
    if (packet->payload_bytes > qp->message_left || (ends && packet->payload_bytes != qp->message_left) ||
        (!ends && packet->payload_bytes == qp->message_left))
        return INVALID;
    if (immediate && !receive_posted(qp)) return NOT_READY;
    if (packet->payload_bytes) {
        uint8_t *memory = sa_memory_reach(qp->memory, qp->domain, qp->write_key, qp->write_address,
                                         packet->payload_bytes, SA_ACCESS_REMOTE_WRITE);
        if (!memory) return NO_ACCESS; /* the region was deregistered meanwhile */
        memcpy(memory, packet->payload, packet->payload_bytes);
    }
    qp->write_address += packet->payload_bytes;
    qp->message_bytes += packet->payload_bytes;
    qp->message_left -= packet->payload_bytes;
    qp->verb = ends ? 0 : WRITING;
    if (immediate) finish(qp, packet, SA_WC_RECEIVE_WRITE_WITH_IMMEDIATE);
    return DONE;
}

static enum outcome take(struct sa_qp *qp, const struct sa_roce_packet *packet) {
    if (!well_formed(qp, packet)) return INVALID;
    enum outcome outcome = packet->shape & SA_ROCE_WRITES ? take_write(qp, packet) : take_send(qp, packet);
    if (outcome == DONE && packet->shape & SA_ROCE_ENDS) qp->msn = (qp->msn + 1) & SA_ROCE_BITS24;
    if (outcome == NOT_READY)
        qp->counters[SA_QP_NO_RECEIVE]++;
    else if (outcome != DONE)
        qp->counters[SA_QP_REFUSED]++;
    return outcome;
}

/* ---- RC */

static void queue_nak(struct sa_qp *qp, uint32_t syndrome) {
    qp->nak = (uint8_t)syndrome;
    qp->answers |= SA_ANSWER_NAK;
}

/* An unrecoverable error: NAK it, and go to ERR. */
static void refuse(struct sa_qp *qp, enum outcome outcome) {
    uint32_t syndrome = outcome == NO_ACCESS     ? SA_ROCE_NAK_ACCESS
                        : outcome == UNREACHABLE ? SA_ROCE_NAK_OPERATION
                                                 : SA_ROCE_NAK_INVALID;
    struct sa_completion failed = {.opcode = SA_WC_RECEIVE};
    failed.status = outcome == TOO_LONG ? SA_WC_LOCAL_LENGTH : SA_WC_LOCAL_PROTECTION;
    if (outcome == TOO_LONG || outcome == UNREACHABLE) sa_qp_finish_receive(qp, &failed);
    sa_qp_fail(qp);
    queue_nak(qp, syndrome);
}

void sa_qp_nak_gap(struct sa_qp *qp, int64_t now_ns) {
    if (qp->reorder.nak_ns > now_ns) return;
    sa_reorder_naked(&qp->reorder, qp->expected);
    queue_nak(qp, SA_ROCE_NAK_SEQUENCE);
}

/* The expected packet, and those after it that are held. */
static void take_in_order(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns) {
    struct sa_roce_packet held;
    enum outcome outcome;
    while ((outcome = take(qp, packet)) == DONE) {
        qp->expected = sa_psn_add(qp->expected, 1);
        if (packet->ack_request) qp->answers |= SA_ANSWER_ACK;
        if (!sa_reorder_next(&qp->reorder, qp->expected, now_ns, &held)) break;
        packet = &held;
    }
    qp->not_ready = outcome == NOT_READY;
    if (qp->not_ready)
        queue_nak(qp, SA_ROCE_RNR_NAK | qp->attributes.min_rnr_timer);
    else if (outcome != DONE)
        refuse(qp, outcome);
    else
        sa_qp_nak_gap(qp, now_ns);
}

static void respond_reliably(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns) {
    int32_t ahead = sa_psn_distance(packet->psn, qp->expected);
    if (ahead < 0) {
        qp->counters[SA_QP_DUPLICATES]++;
        qp->answers |= SA_ANSWER_ACK;
        sa_reorder_repeated(&qp->reorder, packet->psn);
    } else if (ahead > 0) {
        qp->counters[SA_QP_OUT_OF_ORDER]++;
        if (qp->not_ready) return; /* the peer will send it again, after the one that it was told of */
        sa_reorder_gap(&qp->reorder, packet, qp->expected, (uint32_t)ahead, qp->attributes.path_mtu, now_ns);
        sa_qp_nak_gap(qp, now_ns);
    } else {
        qp->answers &= ~(uint32_t)SA_ANSWER_NAK;
        sa_reorder_filled(&qp->reorder, now_ns);
        take_in_order(qp, packet, now_ns);
    }
}

/* ---- UC */

static void drop_message(struct sa_qp *qp) {
    qp->counters[SA_QP_DROPPED_MESSAGES]++;
    qp->verb = 0;
    qp->skipping = true;
}

/* A packet that is far ahead counts only with the next, as in RFC 3550, appendix A.1: a forged one alone would make all
   that follow look late. */
static void respond_unreliably(struct sa_qp *qp, const struct sa_roce_packet *packet) {
    int32_t ahead = sa_psn_distance(packet->psn, qp->expected);
    if (ahead < 0) {
        qp->counters[SA_QP_DUPLICATES]++;
        return;
    }
    if (ahead > 0) qp->counters[SA_QP_OUT_OF_ORDER]++;
    if (ahead > AHEAD_MOST && packet->psn != qp->after_far) {
        qp->after_far = sa_psn_add(packet->psn, 1);
        return;
    }
    bool starts = packet->shape & SA_ROCE_STARTS;
    if (qp->verb && (ahead > 0 || starts)) drop_message(qp);
    if (ahead > 0) qp->skipping = true;
    qp->expected = sa_psn_add(packet->psn, 1);
    if (qp->skipping && !starts) return;
    qp->skipping = false;
    if (take(qp, packet) != DONE) drop_message(qp);
}

/* ---- both */

void sa_qp_respond(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns) {
    if (qp->transport == SA_ROCE_RC)
        respond_reliably(qp, packet, now_ns);
    else
        respond_unreliably(qp, packet);
}

void sa_qp_receive(struct sa_qp *qp, const struct sa_roce_packet *packet, bool marked, int64_t now_ns) {
    if (qp->state != SA_QPS_RTR && qp->state != SA_QPS_RTS && qp->state != SA_QPS_SQD) return;
    qp->counters[SA_QP_RECEIVED_PACKETS]++;
    qp->counters[SA_QP_RECEIVED_BYTES] += packet->payload_bytes;
    if (marked) {
        qp->counters[SA_QP_MARKED]++;
        /* Two ends that answered each other's notifications would never stop. */
        bool notifies = packet->shape & SA_ROCE_NOTIFIES;
        if (!notifies && sa_cnp_due(&qp->gate, SA_CNP_INTERVAL_NS, now_ns)) qp->answers |= SA_ANSWER_CNP;
    }
    if (packet->shape & SA_ROCE_NOTIFIES) {
        qp->counters[SA_QP_CNPS_RECEIVED]++;
        if (qp->paced) sa_dcqcn_cnp(&qp->rate, now_ns);
        qp->counters[SA_QP_RATE_CUTS] = qp->rate.cuts;
    } else if (packet->shape & SA_ROCE_AETH) {
        sa_qp_acknowledged(qp, packet, now_ns);
    } else if ((packet->opcode & SA_ROCE_TRANSPORT) == qp->transport) {
        sa_qp_respond(qp, packet, now_ns);
    }
}

uint32_t sa_qp_answer(struct sa_qp *qp, struct sa_qp_packet *out) {
    struct sa_roce_packet packet = {
        .partition = SA_ROCE_PARTITION, .queue_pair = qp->attributes.peer, .migration = true, .msn = qp->msn};
    uint32_t answer;
    if (qp->answers & SA_ANSWER_CNP) {
        answer = SA_ANSWER_CNP;
        packet.opcode = SA_ROCE_CNP;
        packet.becn = true;
        qp->counters[SA_QP_CNPS_SENT]++;
    } else if (qp->answers & SA_ANSWER_NAK) {
        answer = SA_ANSWER_NAK | (qp->answers & SA_ANSWER_ACK); /* it acknowledges all before */
        packet.opcode = SA_ROCE_RC | SA_ROCE_ACKNOWLEDGE;
        packet.syndrome = qp->nak;
        packet.psn = qp->expected;
        qp->counters[SA_QP_NAKS_SENT]++;
    } else if (qp->answers & SA_ANSWER_ACK) {
        answer = SA_ANSWER_ACK;
        packet.opcode = SA_ROCE_RC | SA_ROCE_ACKNOWLEDGE;
        packet.syndrome = SA_ROCE_ACK_UNLIMITED;
        packet.psn = sa_psn_add(qp->expected, SA_ROCE_BITS24);
        qp->counters[SA_QP_ACKS_SENT]++;
    } else {
        return 0;
    }
    qp->answers &= ~answer;
    *out = (struct sa_qp_packet){0};
    out->headers_bytes = sa_roce_build(&packet, out->headers);
    return answer;
}
