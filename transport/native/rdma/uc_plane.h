/* The switch's end of UC queue pairs (R1 to R8): parses RoCEv2 packets, gives each chunk frame to a data
   plane as it arrives, and lays out results as WRITE_WITH_IMM messages for the workers' buffers. The plane's inputs are
   packets and the time; it has no socket, and allocates nothing per packet. A single thread at a time may use it. */
#pragma once

#include "transport/native/roce/dcqcn.h"
#include "switchagg/native/rule/plane.h"
#include "transport/native/roce/roce.h"
#include "transport/native/network/udp.h"

struct sa_uc_plane;

/* The queue pair for rank r of a job (R3). */
#define SA_UC_QUEUE_PAIR(rank, job_id) (0x800000u | (rank) << 16 | (job_id))

#define SA_UC_RESULTS 256u     /* frames that may wait to be laid out */
#define SA_UC_MESSAGES 2048u   /* UDP messages that one layout gives at most */
#define SA_UC_PACKETS_MAX 128u /* packets of one RDMA message */

/* A worker's end. */
struct sa_uc_peer {
    struct sa_address address; /* its port is where results go: 4791 */
    uint64_t base;             /* address of its result buffer */
    uint32_t queue_pair;
    uint32_t rkey;
    uint32_t psn;              /* of its first packet */
    uint32_t any_identification; /* real NICs: see sa_roce_check */
};

/* A packet is counted once among the first fourteen, also if the data plane counts it by the outcome of its frame. */
enum sa_uc_counter {
    SA_UC_DROP_ROCE_SHORT, /* in the order of enum sa_roce_fault */
    SA_UC_DROP_ROCE_VERSION,
    SA_UC_DROP_ROCE_OPCODE,
    SA_UC_DROP_ROCE_LENGTH,
    SA_UC_DROP_ROCE_PAD,
    SA_UC_DROP_QUEUE_PAIR, /* R3, in the order of the checks */
    SA_UC_DROP_UNKNOWN_SENDER,
    SA_UC_DROP_ICRC,
    SA_UC_CNP_RECEIVED,
    SA_UC_DROP_OPERATION,
    SA_UC_DROP_PARTITION,
    SA_UC_DROP_KEY,
    SA_UC_DROP_ADDRESS,
    SA_UC_DROP_ROUTE,
    SA_UC_PSN_GAPS, /* packets that did not follow the one before */
    SA_UC_ECN_MARKED,
    SA_UC_CNP_SENT,
    SA_UC_MESSAGES_SENT,
    SA_UC_PACKETS_SENT,
    SA_UC_DROP_QUEUE_FULL, /* laid out while the socket had no room for those before */
    SA_UC_COUNTERS
};

/* plane stays the caller's. own: the switch's address. packets: most packets of one message of results, 1 to
   SA_UC_PACKETS_MAX. Returns NULL without memory. */
SA_EXPORT struct sa_uc_plane *sa_uc_plane_new(struct sa_plane *plane, const struct sa_address *local, uint32_t packets);
SA_EXPORT void sa_uc_plane_free(struct sa_uc_plane *rdma);

/* Take the queue pairs of a job (or a new generation of one) that the data plane has admitted, with
   SA_UC_QUEUE_PAIR(rank, job_id) as each rank's port. The job's frames fill an MTU: 20 + 4 * elements is a power of two
   from 256 to 4096, which the caller has checked. peers[rank]; their addresses need not differ. 0, or -1: no memory,
   and nothing has changed. */
SA_EXPORT int sa_uc_plane_admit(struct sa_uc_plane *rdma, const struct sa_job *job, const struct sa_uc_peer *peers);
/* Remove a job's queue pairs and what waits for them; the caller evicts the job from the data plane. */
SA_EXPORT void sa_uc_plane_evict(struct sa_uc_plane *rdma, uint32_t job_id);

/* Take one datagram. position: its place in a bundle, for sa_roce_check. Defined for any bytes. False: no
   room for one more result after this one: lay out first. */
SA_EXPORT bool sa_uc_plane_take(struct sa_uc_plane *rdma, uint8_t *datagram, uint32_t size,
                                  const struct sa_address *sender, uint32_t tos, uint32_t position, int64_t now_ns);

/* Lay out what waits, sealed, as messages of which each is one send of up to `segments` datagrams: *messages[0 ..
   return value). They and their bytes stay until the next layout; frames no longer wait. */
SA_EXPORT uint32_t sa_uc_plane_lay_out(struct sa_uc_plane *rdma, uint32_t segments, struct sa_udp_message **messages);

/* Count `packets` packets of a layout as lost: the socket had no room. */
SA_EXPORT void sa_uc_plane_lost(struct sa_uc_plane *rdma, uint32_t packets);

/* Returns SA_UC_COUNTERS numbers, which are valid as long as `rdma`. */
SA_EXPORT const uint64_t *sa_uc_plane_counters(const struct sa_uc_plane *rdma);
