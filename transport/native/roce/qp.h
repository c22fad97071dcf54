/* An RDMA queue pair, reliable (RC) or not (UC): work requests in, RoCEv2 packets out and in, completions out.

   Sans-IO: no socket, no clock, no thread, no randomness; its inputs are the time (now_ns, never decreasing) and
   packets whose ICRC was checked and whose sender is the peer. Nothing allocates but sa_cq_new, sa_qp_new, and the
   first packet that overtakes another (qp_reorder.h). The same calls give the same packets everywhere. One thread at a
   time may use the queue pairs of one sa_memory and sa_cq.

   RC delivers every message once and in order, or ends with an error completion and the state ERR: acknowledgements
   with go-back-N, one for many packets, requested at each message's end and at least every 64 packets; NAK for a gap
   that lasts, for a missing receive (RNR), for a wrong key or bounds. UC acknowledges nothing: a message with one packet lost, late
   or refused is dropped as a whole (a WRITE may have stored its first part, but never completes at the receiver).
   Beyond the specification: the window of unacknowledged packets is halved when packets were lost and grows back, as
   Ethernet here has no pause frames; UC treats packets with a PSN of the past as late or duplicate, and drops one that
   comes after more than 256 missing packets unless it follows another such. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transport/native/roce/dcqcn.h"
#include "transport/native/roce/qp_reorder.h"
#include "transport/native/rdma/rdma_memory.h"
#include "transport/native/roce/roce.h"

/* ---- completions. Numbers as in libibverbs. */

enum sa_wc_status {
    SA_WC_SUCCESS = 0,
    SA_WC_LOCAL_LENGTH = 1,       /* the message was longer than the receive */
    SA_WC_LOCAL_PROTECTION = 4,   /* lkey, bounds or access of the work request's own memory */
    SA_WC_FLUSHED = 5,            /* not done, as the queue pair is in ERR */
    SA_WC_REMOTE_INVALID = 9,     /* for the peer the request was malformed, or too long for its receive */
    SA_WC_REMOTE_ACCESS = 10,     /* the peer refused key, bounds or access */
    SA_WC_REMOTE_OPERATION = 11,  /* the peer couldn't do it for a reason of its own */
    SA_WC_RETRY_EXCEEDED = 12,    /* no answer */
    SA_WC_RNR_RETRY_EXCEEDED = 13 /* the peer has no receive posted */
};

enum sa_wc_opcode {
    SA_WC_SEND = 0,
    SA_WC_WRITE = 1,
    SA_WC_RECEIVE = 128,
    SA_WC_RECEIVE_WRITE_WITH_IMMEDIATE = 129
};

#define SA_WC_WITH_IMMEDIATE 2u /* flag */

struct sa_completion {
    uint64_t id;
    uint32_t status;
    uint32_t opcode;
    uint32_t queue_pair;
    uint32_t bytes; /* received; of a write with immediate: written */
    uint32_t immediate;
    uint32_t flags;
};

/* A ring that never overflows: posting a work request reserves an entry. */
struct sa_cq {
    struct sa_completion *ring;
    uint32_t capacity;
    uint32_t first;
    uint32_t count;   /* completions that wait to be polled */
    uint32_t claimed; /* work requests that may still complete */
    uint32_t users;   /* queue pairs */
    uint64_t pushed;  /* completions so far */
    bool called;      /* its present or next waiting poll shall return: see sa_rdma_interrupt */
};

int sa_cq_new(struct sa_cq *cq, uint32_t capacity); /* 0, -EINVAL, -ENOMEM */
void sa_cq_free(struct sa_cq *cq);
uint32_t sa_cq_poll(struct sa_cq *cq, struct sa_completion *completions, uint32_t most);

/* ---- work requests */

enum sa_wr_opcode { SA_WR_WRITE = 0, SA_WR_WRITE_WITH_IMMEDIATE = 1, SA_WR_SEND = 2, SA_WR_SEND_WITH_IMMEDIATE = 3 };
enum sa_send_flags { SA_SEND_SIGNALED = 2, SA_SEND_SOLICITED = 4 };

#define SA_MESSAGE_MAX (1u << 31)

struct sa_send_request {
    uint64_t id;
    uint64_t address;
    uint64_t remote_address; /* writes */
    uint32_t length;         /* at most SA_MESSAGE_MAX */
    uint32_t lkey;           /* any if length is 0 */
    uint32_t rkey;           /* writes */
    uint32_t immediate;
    uint32_t opcode;
    uint32_t flags;
};

struct sa_receive_request {
    uint64_t id;
    uint64_t address;
    uint32_t length;
    uint32_t lkey; /* any if length is 0 */
};

/* ---- the queue pair */

enum sa_qp_state { SA_QPS_RESET, SA_QPS_INIT, SA_QPS_RTR, SA_QPS_RTS, SA_QPS_SQD, SA_QPS_ERR = 6 };

/* The attributes that a change of state sets, as in libibverbs: INIT access; RTR peer, path_mtu, receive_psn,
   min_rnr_timer; RTS send_psn, timeout, retry_count, rnr_retry, window_packets, and the rate. The rest is ignored. */
struct sa_qp_attributes {
    uint32_t access;        /* SA_ACCESS_REMOTE_WRITE: peers may write */
    uint32_t path_mtu;      /* 256, 512, 1024, 2048, 4096 */
    uint32_t peer;          /* its number, 24 bits */
    uint32_t receive_psn;   /* 24 bits */
    uint32_t send_psn;      /* 24 bits */
    uint32_t min_rnr_timer; /* code 0 to 31: the pause requested of the peer when no receive is posted */
    uint32_t timeout;       /* 0 to 31: 4.096 us * 2^timeout; 0: never */
    uint32_t retry_count;   /* 0 to 7 */
    uint32_t rnr_retry;     /* 0 to 7; 7: for ever */
    uint32_t window_packets; /* unacknowledged at most; 1 to 2^22 */
    uint64_t line_bps;       /* rate control starts here; 0: none */
};

enum sa_qp_counter {
    SA_QP_SENT_PACKETS,
    SA_QP_SENT_BYTES, /* UDP payloads, as below */
    SA_QP_RESENT_PACKETS,
    SA_QP_RECEIVED_PACKETS,
    SA_QP_RECEIVED_BYTES,
    SA_QP_DUPLICATES,     /* packets of the past */
    SA_QP_OUT_OF_ORDER,   /* packets after a gap */
    SA_QP_DROPPED_MESSAGES, /* UC */
    SA_QP_REFUSED,        /* packets with a wrong key, bounds, access, or out of place */
    SA_QP_NO_RECEIVE,     /* packets for which none was posted */
    SA_QP_ACKS_SENT,
    SA_QP_NAKS_SENT,
    SA_QP_ACKS_RECEIVED,
    SA_QP_NAKS_RECEIVED,
    SA_QP_TIMEOUTS,
    SA_QP_CNPS_SENT,
    SA_QP_CNPS_RECEIVED,
    SA_QP_MARKED, /* packets that came with congestion experienced */
    SA_QP_RATE_CUTS, /* by rate control, for notifications */
    SA_QP_COUNTERS
};

struct sa_send_entry {
    struct sa_send_request request;
    uint64_t first;   /* sequence of its first packet */
    uint32_t packets; /* at least 1 */
    uint32_t fault;   /* enum sa_wc_status that it will complete with, found when it was posted */
    const uint8_t *memory;
};

enum sa_qp_answers { SA_ANSWER_ACK = 1, SA_ANSWER_NAK = 2, SA_ANSWER_CNP = 4 };

struct sa_qp {
    uint32_t number;
    uint32_t transport; /* SA_ROCE_RC or SA_ROCE_UC */
    uint32_t domain;
    enum sa_qp_state state;
    struct sa_qp_attributes attributes;
    struct sa_memory *memory;
    struct sa_cq *send_cq;
    struct sa_cq *receive_cq;
    bool signal_all;
    uint64_t counters[SA_QP_COUNTERS];

    /* Requester. Sequences are PSNs that never wrap: PSN = sequence mod 2^24. Entries by number mod send_depth. */
    struct sa_send_entry *sends;
    uint32_t send_depth;
    uint64_t send_head;    /* entries: the oldest not completed */
    uint64_t send_cursor;  /* the one that is being sent */
    uint64_t send_tail;    /* the next to be posted */
    uint64_t post_sequence; /* of the next entry's first packet */
    uint64_t next_sequence; /* of the next packet to send */
    uint64_t high_sequence; /* one beyond the highest ever sent */
    uint64_t unacked;       /* of the oldest packet not acknowledged */
    uint64_t ack_end;         /* one beyond the latest packet sent that requested an acknowledgement */
    uint64_t window;        /* packets */
    uint64_t loss_sequence; /* the window isn't halved again before this is acknowledged */
    uint32_t storm;         /* NAKs in a row that came after few packets */
    uint64_t nak_sequence;  /* of the packet gone back to for a NAK, or none */
    int64_t retry_ns;       /* when what is unacknowledged counts as lost; SA_QP_NEVER: nothing is */
    int64_t rnr_ns;         /* nothing is sent before, as the peer wasn't ready (RNR); 0: it is */
    uint32_t retries;       /* left */
    uint32_t rnr_retries;
    bool paced;
    struct sa_dcqcn rate;

    /* Responder */
    struct sa_receive_request *receives;
    uint32_t receive_depth;
    uint64_t receive_head;
    uint64_t receive_tail;
    uint32_t expected; /* PSN */
    uint32_t msn;
    uint32_t verb;     /* of the message in progress: SA_ROCE_STARTS | SA_ROCE_WRITES, SA_ROCE_STARTS, or 0: none */
    uint32_t after_far; /* UC: PSN after that of the latest packet too far ahead; SA_QP_NO_PSN: none came */
    bool skipping;     /* UC: packets belong to a dropped message, until the next one starts */
    bool not_ready;    /* an RNR NAK was sent for `expected` */
    struct sa_reorder reorder;
    uint32_t write_key;
    uint64_t write_address; /* of the next packet's payload */
    uint64_t message_bytes; /* so far */
    uint64_t message_left;  /* writes */
    uint32_t answers;       /* enum sa_qp_answers that wait to be sent */
    uint8_t nak;            /* syndrome */
    struct sa_cnp_gate gate;
};

#define SA_QP_NEVER INT64_MAX
#define SA_QP_NO_PSN UINT32_MAX

/* transport: SA_ROCE_RC or SA_ROCE_UC. Depths: most work requests not completed. Returns 0, -EINVAL or -ENOMEM. */
int sa_qp_init(struct sa_qp *qp, uint32_t number, uint32_t transport, uint32_t domain, struct sa_memory *memory,
               struct sa_cq *send_cq, struct sa_cq *receive_cq, uint32_t send_depth, uint32_t receive_depth,
               bool signal_all);
/* Drops all work requests without completions, and frees its memory. */
void sa_qp_free(struct sa_qp *qp);

/* To `state`, from one that allows it: RESET - INIT - RTR - RTS - SQD - RTS, and from any to ERR and RESET. ERR
   completes all work requests as flushed; RESET drops them. Returns 0 or -EINVAL: nothing was changed. */
int sa_qp_modify(struct sa_qp *qp, enum sa_qp_state state, const struct sa_qp_attributes *attributes, int64_t now_ns);

/* 0; -EINVAL: not in this state, or the request is malformed; -ENOMEM: queue full, or no place in the completion queue.
   In ERR the request is completed as flushed. Memory must stay as it is until completion. Wrong lkey, bounds or access
   complete with SA_WC_LOCAL_PROTECTION. */
int sa_qp_post_send(struct sa_qp *qp, const struct sa_send_request *request);
int sa_qp_post_receive(struct sa_qp *qp, const struct sa_receive_request *request);

/* ---- sending: sa_qp_peek lists what may leave, the caller sends it, sa_qp_sent records how much left */

/* Headers from the BTH on; payload in registered memory; pad (zeros) and ICRC are the caller's to add. */
struct sa_qp_packet {
    uint8_t headers[SA_ROCE_HEADERS_MAX];
    uint32_t headers_bytes;
    uint32_t payload_bytes;
    uint32_t pad;
    const uint8_t *payload;
};

static inline uint32_t sa_qp_packet_bytes(const struct sa_qp_packet *packet) {
    return packet->headers_bytes + packet->payload_bytes + packet->pad + SA_ROCE_ICRC_BYTES;
}

/* Up to `most` packets, at most `bytes_most` bytes of UDP payload together (but one at least), all of one size but the
   last, which may be shorter: one GSO send. Nothing is changed; 0: nothing may be sent now. */
uint32_t sa_qp_peek(struct sa_qp *qp, int64_t now_ns, uint32_t most, uint32_t bytes_most, struct sa_qp_packet *packets);
/* The first `count` packets of sa_qp_peek, with `bytes` bytes of UDP payload together, have left. */
void sa_qp_sent(struct sa_qp *qp, uint32_t count, uint32_t bytes, int64_t now_ns);

/* Takes one acknowledgement or notification that waits; returns which (enum sa_qp_answers), 0 for none. If it can't be
   sent, `qp->answers |= ` it. */
uint32_t sa_qp_answer(struct sa_qp *qp, struct sa_qp_packet *packet);

/* ---- receiving */

/* A parsed packet for this queue pair, from its peer, its ICRC right. marked: it came with congestion experienced. */
void sa_qp_receive(struct sa_qp *qp, const struct sa_roce_packet *packet, bool marked, int64_t now_ns);

/* ---- time */

/* When sa_qp_tick, or sa_qp_peek for paced packets, has something to do; SA_QP_NEVER: nothing. */
int64_t sa_qp_deadline_ns(struct sa_qp *qp, int64_t now_ns);
void sa_qp_tick(struct sa_qp *qp, int64_t now_ns);

/* Returns the duration of an RNR timer code. */
int64_t sa_rnr_timer_ns(uint32_t code);

/* ---- for the files of the queue pair itself: qp.c, qp_request.c, qp_respond.c */

void sa_qp_reset_requests(struct sa_qp *qp, int64_t now_ns);
/* An ACK or NAK arrived. */
void sa_qp_acknowledged(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns);
void sa_qp_respond(struct sa_qp *qp, const struct sa_roce_packet *packet, int64_t now_ns);
/* NAK the gap at the expected packet, if it is time. */
void sa_qp_nak_gap(struct sa_qp *qp, int64_t now_ns);
/* Complete the oldest send; the oldest receive. */
void sa_qp_finish_send(struct sa_qp *qp, uint32_t status);
void sa_qp_finish_receive(struct sa_qp *qp, const struct sa_completion *completion);
/* If the oldest send can't be done: complete it with its error, and go to ERR. */
void sa_qp_check_front(struct sa_qp *qp);
/* To ERR: complete all work requests as flushed. */
void sa_qp_fail(struct sa_qp *qp);
