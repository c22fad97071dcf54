/* An RDMA endpoint in user space: queue pairs (qp.h) over a UDP socket, as RoCEv2 (roce.h), in bundles.

   Packets of one size that follow each other leave in one system call (UDP_SEGMENT), straight from registered memory:
   each byte is read once for the ICRC and once, then in the cache, by the kernel. Packets that arrive together
   (UDP_GRO) are checked and copied to their place, then acknowledged once. Packets are sent as ECN-capable (ECT(0));
   those that arrive marked "congestion experienced" make their queue pair send notifications (CNP), at most one in 50
   us.

   Identification of IPv4 packets (see roce.h): until 65 packets of a queue pair in a row had one below 64, which no
   counter produces, any identification is accepted; from then on only those below 64.

   Any thread may call any function but sa_rdma_progress, which one thread at a time may be in. Functions return 0 or
   their result, or -errno: -EINVAL wrong arguments or state, -ENOMEM no memory or a queue is full, -EBUSY
   still in use, -ESHUTDOWN after sa_rdma_stop. Socket and eventfd are the caller's, to be closed after sa_rdma_free. */
#pragma once

#include "transport/native/roce/qp.h"
#include "transport/native/network/udp.h"

struct sa_rdma;

struct sa_rdma_options {
    int32_t descriptor; /* UDP, bound to `local`, IP_PMTUDISC_PROBE, non-blocking */
    int32_t wake;       /* eventfd, non-blocking */
    uint32_t gso;
    uint32_t gro;
    uint32_t segments_max; /* packets per send, 1 to 64 */
    uint32_t queue_pairs;  /* at most; a power of two, up to 65536 */
    struct sa_address local;
};

/* NULL: no memory, or the socket can't be used (errno). */
struct sa_rdma *sa_rdma_new(const struct sa_rdma_options *options);
/* No other thread may be in, or later call, any function. */
void sa_rdma_free(struct sa_rdma *rdma);
/* All waiting functions return, registered memory isn't touched any more once sa_rdma_progress has returned. */
void sa_rdma_stop(struct sa_rdma *rdma);

/* Send and receive until CLOCK_MONOTONIC is until_ns, or, unless `stay`, until gather_ns after the first new completion, or
   sa_rdma_wake is called. 0, or -errno: -EBUSY another thread is in it; else the socket has failed. */
int sa_rdma_progress(struct sa_rdma *rdma, int64_t until_ns, int64_t gather_ns, bool stay);
void sa_rdma_wake(struct sa_rdma *rdma);

/* Protection domains are numbers from 1. */
int64_t sa_rdma_alloc_domain(struct sa_rdma *rdma);
int sa_rdma_free_domain(struct sa_rdma *rdma, uint32_t domain);

/* The key, as lkey and, if `access` has SA_ACCESS_REMOTE_WRITE, as rkey. The memory must stay until it is
   deregistered. */
int64_t sa_rdma_register(struct sa_rdma *rdma, uint32_t domain, uint64_t address, uint64_t length, uint32_t access);
int sa_rdma_deregister(struct sa_rdma *rdma, uint32_t key);

/* Returns the number of a new completion queue. */
int64_t sa_rdma_create_cq(struct sa_rdma *rdma, uint32_t capacity);
int sa_rdma_destroy_cq(struct sa_rdma *rdma, uint32_t cq);
/* Takes up to `most` completions. Waits for the first until until_ns; 0: doesn't wait. Returns how many. */
int sa_rdma_poll(struct sa_rdma *rdma, uint32_t cq, struct sa_completion *completions, uint32_t most, int64_t until_ns);
/* Make the present waiting sa_rdma_poll of this queue, or else the next one, return soon. */
int sa_rdma_interrupt(struct sa_rdma *rdma, uint32_t cq);

struct sa_rdma_queue_pair {
    uint32_t transport; /* SA_ROCE_RC or SA_ROCE_UC */
    uint32_t domain;
    uint32_t send_cq;
    uint32_t receive_cq;
    uint32_t send_depth;
    uint32_t receive_depth;
    uint32_t signal_all;
};

/* The queue pair's number, 24 bits; a freed number is reused as late as possible. */
int64_t sa_rdma_create_qp(struct sa_rdma *rdma, const struct sa_rdma_queue_pair *wanted);
int sa_rdma_destroy_qp(struct sa_rdma *rdma, uint32_t number);
/* See sa_qp_modify. For RTR: the peer's address and port, and the DSCP of the packets to it, 0 to 63. */
int sa_rdma_modify_qp(struct sa_rdma *rdma, uint32_t number, uint32_t state, const struct sa_qp_attributes *attributes,
                      const struct sa_address *peer, uint32_t dscp);
/* The state, enum sa_qp_state. counters, unless NULL: SA_QP_COUNTERS of them. rate_bps, unless NULL: 0 without one. */
int sa_rdma_query_qp(struct sa_rdma *rdma, uint32_t number, uint64_t *counters, uint64_t *rate_bps);

/* Returns how many of `count`, from the first on, were posted; they may be sent at once, in this thread. */
int sa_rdma_post_send(struct sa_rdma *rdma, uint32_t number, const struct sa_send_request *requests, uint32_t count);
int sa_rdma_post_receive(struct sa_rdma *rdma, uint32_t number, const struct sa_receive_request *requests,
                         uint32_t count);

enum sa_rdma_counter {
    SA_RDMA_SENT_BUNDLES,
    SA_RDMA_SENT_PACKETS,
    SA_RDMA_SENT_BYTES, /* UDP payload */
    SA_RDMA_SEND_ERRORS,
    SA_RDMA_SEND_WOULD_BLOCK,
    SA_RDMA_GSO_FALLBACKS,
    SA_RDMA_RECEIVED_BUNDLES,
    SA_RDMA_RECEIVED_PACKETS,
    SA_RDMA_RECEIVE_OVERFLOW, /* bundles that the kernel dropped */
    SA_RDMA_DROP_MALFORMED,
    SA_RDMA_DROP_QUEUE_PAIR, /* for a queue pair that doesn't exist */
    SA_RDMA_DROP_UNKNOWN_SENDER, /* not from the queue pair's peer */
    SA_RDMA_DROP_PARTITION,
    SA_RDMA_DROP_ICRC,
    SA_RDMA_COUNTERS
};

/* SA_RDMA_COUNTERS of them; and why the newest send was refused, an errno, 0 if none was. */
void sa_rdma_counters(struct sa_rdma *rdma, uint64_t *counters, int32_t *send_errno);
