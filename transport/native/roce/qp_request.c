/* See qp.h: the requester. */
#include "transport/native/roce/qp.h"

#include <stddef.h>

#define ACK_EVERY 64u        /* packets; a power of two */
#define WINDOW_LEAST 16u     /* loss doesn't halve it below this, unless the window was configured smaller */
#define STORM_MOST 3u        /* halvings of that */
#define WINDOW_GROWTH 16u    /* one packet more per so many acknowledged */
#define PACING_BURST 131072u /* bytes at once: a bundle of 64 kB may be delayed without lowering the rate */
#define TIMEOUT_UNIT_NS 4096
#define FOR_EVER 7u
#define NONE UINT64_MAX /* of sequences */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

int64_t sa_rnr_timer_ns(uint32_t code) {
    static const uint16_t hundredths_of_ms[32] = {0,   1,   2,   3,   4,   6,    8,    12,   16,   24,   32,
                                                  48,  64,  96,  128, 192, 256,  384,  512,  768,  1024, 1536,
                                                  2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return (code & 31u ? hundredths_of_ms[code & 31u] : 65536) * INT64_C(10000);
}

/* Only for a packet that requested an acknowledgement: at a slow rate those before it take long, and get none. */
static void start_timer(struct sa_qp *qp, int64_t now_ns) {
    uint32_t timeout = qp->attributes.timeout;
    bool waits = qp->transport == SA_ROCE_RC && timeout && qp->unacked < qp->ack_end;
    qp->retry_ns = waits ? now_ns + ((int64_t)TIMEOUT_UNIT_NS << timeout) : SA_QP_NEVER;
}

void sa_qp_reset_requests(struct sa_qp *qp, int64_t now_ns) {
    qp->post_sequence = qp->next_sequence = qp->high_sequence = qp->attributes.send_psn;
    qp->unacked = qp->ack_end = qp->next_sequence;
    qp->loss_sequence = qp->storm = 0;
    qp->nak_sequence = NONE;
    qp->window = qp->attributes.window_packets;
    qp->retries = qp->attributes.retry_count;
    qp->rnr_retries = qp->attributes.rnr_retry;
    qp->rnr_ns = 0;
    start_timer(qp, now_ns);
}

/* ---- packets out */

static uint32_t operation(bool writes, bool immediate, bool first, bool last) {
    uint32_t base = writes ? SA_ROCE_WRITE_FIRST : SA_ROCE_SEND_FIRST;
    if (!last) return base + (first ? 0 : SA_ROCE_SEND_MIDDLE);
    return base + (first ? SA_ROCE_SEND_ONLY : SA_ROCE_SEND_LAST) + immediate;
}

/* The number behind the last packet that the window allows. */
static uint64_t limit_of(const struct sa_qp *qp) {
    return qp->transport == SA_ROCE_RC ? qp->unacked + qp->window : UINT64_MAX;
}

static bool asks(const struct sa_qp *qp, const struct sa_send_entry *entry, uint64_t sequence) {
    return qp->transport == SA_ROCE_RC && (sequence + 1 == entry->first + entry->packets ||
                                           sequence + 1 == limit_of(qp) || sequence % ACK_EVERY == ACK_EVERY - 1);
}

static void build(const struct sa_qp *qp, const struct sa_send_entry *entry, uint64_t sequence,
                  struct sa_qp_packet *out) {
    const struct sa_send_request *request = &entry->request;
    uint64_t index = sequence - entry->first, offset = index * qp->attributes.path_mtu;
    bool first = index == 0, last = index + 1 == entry->packets;
    bool writes = request->opcode <= SA_WR_WRITE_WITH_IMMEDIATE, immediate = request->opcode & 1u;
    out->payload_bytes = (uint32_t)least(qp->attributes.path_mtu, request->length - offset);
    out->pad = sa_roce_pad(out->payload_bytes);
    out->payload = out->payload_bytes ? entry->memory + offset : NULL;
    struct sa_roce_packet packet = {
        .opcode = (uint8_t)(qp->transport + operation(writes, immediate, first, last)),
        .solicited = last && request->flags & SA_SEND_SOLICITED,
        .migration = true, /* as every NIC sends it: the only state without automatic path migration */
        .pad = (uint8_t)out->pad,
        .partition = SA_ROCE_PARTITION,
        .queue_pair = qp->attributes.peer,
        .psn = (uint32_t)(sequence & SA_ROCE_BITS24),
        .ack_request = asks(qp, entry, sequence),
        .address = request->remote_address,
        .rkey = request->rkey,
        .length = request->length,
        .immediate = request->immediate,
    };
    out->headers_bytes = sa_roce_build(&packet, out->headers);
}

static bool held_back(const struct sa_qp *qp, const struct sa_send_entry *entry, uint64_t sequence) {
    return entry->fault || (qp->state == SA_QPS_SQD && sequence == entry->first && sequence >= qp->high_sequence);
}

/* Whether a packet could leave if the peer is ready and the rate allows it. */
static bool has_work(const struct sa_qp *qp) {
    if (qp->state != SA_QPS_RTS && qp->state != SA_QPS_SQD) return false;
    return qp->send_cursor < qp->send_tail && qp->next_sequence < limit_of(qp) &&
           !held_back(qp, &qp->sends[qp->send_cursor % qp->send_depth], qp->next_sequence);
}

uint32_t sa_qp_peek(struct sa_qp *qp, int64_t now_ns, uint32_t most, uint32_t bytes_most, struct sa_qp_packet *packets) {
    if (!has_work(qp) || qp->rnr_ns > now_ns) return 0;
    uint64_t allowed = qp->paced ? sa_dcqcn_allowance(&qp->rate, PACING_BURST, now_ns) : UINT64_MAX;
    uint64_t cursor = qp->send_cursor, sequence = qp->next_sequence, limit = limit_of(qp);
    uint32_t count = 0, bytes = 0, size = 0;
    while (count < most && bytes < allowed && cursor < qp->send_tail && sequence < limit) {
        const struct sa_send_entry *entry = &qp->sends[cursor % qp->send_depth];
        if (held_back(qp, entry, sequence)) break;
        build(qp, entry, sequence, &packets[count]);
        uint32_t packet_bytes = sa_qp_packet_bytes(&packets[count]);
        if (count && (packet_bytes > size || bytes + packet_bytes > bytes_most)) break;
        bool shorter = count && packet_bytes < size;
        size = packet_bytes;
        bytes += packet_bytes;
        count++;
        sequence++;
        if (sequence == entry->first + entry->packets) cursor++;
        if (shorter) break;
    }
    return count;
}

void sa_qp_sent(struct sa_qp *qp, uint32_t count, uint32_t bytes, int64_t now_ns) {
    qp->counters[SA_QP_SENT_PACKETS] += count;
    qp->counters[SA_QP_SENT_BYTES] += bytes;
    if (qp->paced) sa_dcqcn_sent(&qp->rate, bytes, now_ns);
    if (qp->next_sequence < qp->high_sequence)
        qp->counters[SA_QP_RESENT_PACKETS] += least(count, qp->high_sequence - qp->next_sequence);
    while (count) {
        const struct sa_send_entry *entry = &qp->sends[qp->send_cursor % qp->send_depth];
        uint64_t left = entry->first + entry->packets - qp->next_sequence, step = least(left, count);
        count -= (uint32_t)step;
        for (; step; step--, left--, qp->next_sequence++)
            if (asks(qp, entry, qp->next_sequence)) qp->ack_end = qp->next_sequence + 1;
        if (left) break;
        qp->send_cursor++;
        if (qp->transport == SA_ROCE_UC) sa_qp_finish_send(qp, SA_WC_SUCCESS);
    }
    if (qp->high_sequence < qp->next_sequence) qp->high_sequence = qp->next_sequence;
    if (qp->transport == SA_ROCE_UC)
        qp->unacked = qp->next_sequence;
    else if (qp->retry_ns == SA_QP_NEVER)
        start_timer(qp, now_ns);
    sa_qp_check_front(qp);
}

/* ---- acknowledgements in, and time */

/* Send again from the oldest unacknowledged packet on. */
static void go_back(struct sa_qp *qp) {
    qp->next_sequence = qp->ack_end = qp->unacked;
    qp->send_cursor = qp->send_head;
    qp->retry_ns = SA_QP_NEVER;
}

static void fail_oldest(struct sa_qp *qp, uint32_t status) {
    if (qp->send_head < qp->send_tail) sa_qp_finish_send(qp, status);
    sa_qp_fail(qp);
}

static void lost(struct sa_qp *qp) {
    if (!qp->retries) {
        fail_oldest(qp, SA_WC_RETRY_EXCEEDED);
        return;
    }
    qp->retries--;
    if (qp->unacked >= qp->loss_sequence || qp->storm) {
        uint64_t floor = least(WINDOW_LEAST >> qp->storm, qp->attributes.window_packets);
        qp->window = qp->window / 2 > floor ? qp->window / 2 : floor;
        qp->loss_sequence = qp->high_sequence;
    }
    go_back(qp);
}

static void advance(struct sa_qp *qp, uint64_t to, int64_t now_ns) {
    if (to == qp->unacked) return;
    uint64_t grown = qp->window + (to - qp->unacked + WINDOW_GROWTH - 1) / WINDOW_GROWTH;
    qp->window = least(grown, qp->attributes.window_packets);
    qp->unacked = to;
    qp->retries = qp->attributes.retry_count;
    qp->rnr_retries = qp->attributes.rnr_retry;
    while (qp->send_head < qp->send_tail) {
        const struct sa_send_entry *entry = &qp->sends[qp->send_head % qp->send_depth];
        if (entry->first + entry->packets > to) break;
        sa_qp_finish_send(qp, SA_WC_SUCCESS);
    }
    if (qp->next_sequence < to) { /* it was to be sent again, but had arrived */
        qp->next_sequence = to;
        qp->send_cursor = qp->send_head;
    }
    start_timer(qp, now_ns);
}

static void peer_not_ready(struct sa_qp *qp, uint32_t code, int64_t now_ns) {
    if (qp->rnr_ns > now_ns) return; /* a second copy */
    if (!qp->rnr_retries) {
        fail_oldest(qp, SA_WC_RNR_RETRY_EXCEEDED);
        return;
    }
    if (qp->rnr_retries != FOR_EVER) qp->rnr_retries--;
    qp->rnr_ns = now_ns + sa_rnr_timer_ns(code);
    qp->retries = qp->attributes.retry_count; /* it answers */
    qp->nak_sequence = NONE;
    go_back(qp);
}

/* Once for each packet: a second NAK answers what was sent before going back, as does one while the peer isn't ready.
   The timer finds packets that are lost again. NAK after NAK after few packets come from a peer that keeps none of
   those that overtake others: the more is in flight, the more is sent for nothing. */
static void out_of_sequence(struct sa_qp *qp) {
    if (qp->next_sequence == qp->unacked || qp->nak_sequence == qp->unacked) return;
    bool soon = qp->nak_sequence != NONE && qp->unacked - qp->nak_sequence < WINDOW_LEAST;
    qp->storm = soon ? (uint32_t)least(qp->storm + 1, STORM_MOST) : 0;
    qp->nak_sequence = qp->unacked;
    lost(qp);
}

void sa_qp_acknowledged(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns) {
    if (qp->transport != SA_ROCE_RC || (qp->state != SA_QPS_RTS && qp->state != SA_QPS_SQD)) return;
    uint32_t kind = packet->syndrome & SA_ROCE_SYNDROME_KIND;
    bool positive = kind == SA_ROCE_ACK;
    qp->counters[positive ? SA_QP_ACKS_RECEIVED : SA_QP_NAKS_RECEIVED]++;
    int32_t ahead = sa_psn_distance(packet->psn, (uint32_t)(qp->unacked & SA_ROCE_BITS24)) + positive;
    if (ahead < 0 || (uint64_t)ahead + !positive > qp->high_sequence - qp->unacked) return; /* of the past, or never sent */
    advance(qp, qp->unacked + (uint32_t)ahead, now_ns);
    if (kind == SA_ROCE_RNR_NAK)
        peer_not_ready(qp, packet->syndrome, now_ns);
    else if (packet->syndrome == SA_ROCE_NAK_SEQUENCE)
        out_of_sequence(qp);
    else if (packet->syndrome == SA_ROCE_NAK_INVALID)
        fail_oldest(qp, SA_WC_REMOTE_INVALID);
    else if (packet->syndrome == SA_ROCE_NAK_ACCESS)
        fail_oldest(qp, SA_WC_REMOTE_ACCESS);
    else if (packet->syndrome == SA_ROCE_NAK_OPERATION)
        fail_oldest(qp, SA_WC_REMOTE_OPERATION);
    else
        sa_qp_check_front(qp);
}

int64_t sa_qp_deadline_ns(struct sa_qp *qp, int64_t now_ns) {
    int64_t deadline = qp->retry_ns < qp->reorder.nak_ns ? qp->retry_ns : qp->reorder.nak_ns;
    if (!has_work(qp)) return deadline;
    int64_t ready = qp->paced ? sa_dcqcn_next_ns(&qp->rate, PACING_BURST, now_ns) : now_ns;
    if (ready < qp->rnr_ns) ready = qp->rnr_ns;
    return deadline < ready ? deadline : ready;
}

void sa_qp_tick(struct sa_qp *qp, int64_t now_ns) {
    sa_qp_nak_gap(qp, now_ns);
    if (qp->retry_ns > now_ns) return;
    qp->counters[SA_QP_TIMEOUTS]++;
    qp->nak_sequence = NONE;
    qp->storm = 0;
    lost(qp);
}
