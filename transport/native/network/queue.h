/* The queue of a port, with strict priority, a byte limit, ECN marks and a rate; and the pool that its packets are
   from. Pure: given the time, it returns the next departure. Only sa_pool_new allocates. A single thread at a time may use a
   queue and its pool. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The bytes of a datagram; a broadcast's packets to all ports share one. */
struct sa_buffer {
    struct sa_buffer *next;
    uint32_t references;
    uint32_t size;
    uint8_t bytes[];
};

struct sa_packet {
    struct sa_packet *next; /* in its class, or of the free ones */
    struct sa_buffer *buffer;
    uint32_t port;      /* the caller's */
    uint8_t direction;  /* the caller's */
    uint8_t tos;        /* DSCP in the upper six bits, ECN in the lower two */
    uint16_t unused;
};

struct sa_pool;

/* Makes room for `packets` datagrams of up to `buffer_bytes`. Unused memory is never touched. Returns NULL without
   memory. */
struct sa_pool *sa_pool_new(uint32_t packets, uint32_t buffer_bytes);
void sa_pool_free(struct sa_pool *pool);
uint32_t sa_pool_buffer_bytes(const struct sa_pool *pool);

/* A packet with a buffer of its own, filled from `bytes` unless that is NULL. NULL: the pool is exhausted.
   size is at most sa_pool_buffer_bytes. */
struct sa_packet *sa_pool_take(struct sa_pool *pool, const uint8_t *bytes, uint32_t size, uint8_t tos);
/* Another packet with the same bytes, TOS, port and direction, which must not be written from now on. Returns NULL as
   above. */
struct sa_packet *sa_pool_share(struct sa_pool *pool, const struct sa_packet *packet);
void sa_pool_give(struct sa_pool *pool, struct sa_packet *packet);
/* Returns how many packets are in use. */
uint32_t sa_pool_used(const struct sa_pool *pool);

#define SA_CLASSES 8u
#define SA_NEVER_MARK UINT64_MAX
#define SA_NEVER INT64_MAX

struct sa_queue_config {
    uint64_t rate_bps;            /* 0: packets may leave at once */
    uint64_t limit_bytes;         /* held packets of one class, the arriving one included */
    uint64_t ecn_threshold_bytes; /* SA_NEVER_MARK: no marks */
    uint32_t framing_bytes;       /* per packet, as Linux's shapers count: Ethernet, IP and UDP headers */
    uint32_t unused;
};

/* Bytes are counted with framing. A packet is held from enqueue until its last bit has left. */
struct sa_queue {
    uint64_t held_bytes;
    uint64_t held_packets;
    uint64_t marked; /* so far */
    struct sa_queue_config config;
    struct sa_packet *heads[SA_CLASSES];
    struct sa_packet *tails[SA_CLASSES];
    uint64_t class_bytes[SA_CLASSES]; /* of held_bytes */
    uint32_t occupied;         /* bit c: class c has packets */
    uint32_t costed;           /* framed bytes for which cost_ns and cost_part hold */
    struct sa_packet *serving; /* on the wire; only with a rate */
    int64_t free_ns;           /* its last bit leaves at free_ns + free_part / rate_bps nanoseconds */
    uint64_t free_part;
    int64_t cost_ns;
    uint64_t cost_part;
};

enum sa_enqueued { SA_QUEUED, SA_QUEUED_MARKED, SA_QUEUE_FULL };

void sa_queue_init(struct sa_queue *queue, const struct sa_queue_config *config);

/* Returns the class of a packet: DSCP >> 3, the higher the more urgent. */
static inline uint32_t sa_class(uint8_t tos) { return tos >> 5; }

/* Add a packet at the tail of its class. Above the class's byte limit it is refused and stays the caller's: packets of
   other classes take no room from an urgent one. If the whole queue holds more than the ECN threshold before it, an
   ECT(0) or ECT(1) packet becomes CE. The caller has taken out before whatever has left by now_ns; now_ns never runs
   backwards. */
enum sa_enqueued sa_queue_enqueue(struct sa_queue *queue, struct sa_packet *packet, int64_t now_ns);

/* When the next packet has left: SA_NEVER if none is held, 0 (at once) without a rate. */
int64_t sa_queue_departure_ns(const struct sa_queue *queue);

/* The packet that has left by now_ns, or NULL. Serialisation is exact: n frames back to back take ceil(bits * 10^9 /
   rate) ns at any rate. The queue chooses the next packet at the instant the wire becomes idle: a packet on the wire is
   never preempted. */
struct sa_packet *sa_queue_depart(struct sa_queue *queue, int64_t now_ns);

/* Undo the latest departure of this packet; only without a rate. */
void sa_queue_put_back(struct sa_queue *queue, struct sa_packet *packet);

/* Return all packets to the pool. */
void sa_queue_clear(struct sa_queue *queue, struct sa_pool *pool);
