/* The user-space switch runs a native data plane on a UDP socket, with a queue and impairments per port and direction.

   up:   receive -> [queue, rate] -> [impairments] -> data plane down: data plane -> [queue, rate] -> [impairments] ->
   outbox of the port -> send

   Bundles are split into packets first: faults and marks are drawn per packet. Links with a rate or a delay run in
   virtual time (a heap of departures and arrivals), which follows the clock: a late iteration doesn't shift departures.
   Without impairments results are written once, into memory that is sent to all ports. A single thread at a time may use
   it. */
#pragma once

#include "transport/native/network/impair.h"
#include "switchagg/native/rule/plane.h"
#include "transport/native/network/hop.h"
#include "transport/native/network/queue.h"
#include "transport/native/network/udp.h"

struct sa_switch;

enum sa_direction { SA_DIRECTION_UP, SA_DIRECTION_DOWN, SA_DIRECTIONS };

struct sa_switch_config {
    struct sa_udp *udp;     /* these two stay the caller's and must outlive the switch */
    struct sa_plane *plane;
    uint64_t seed;
    struct sa_queue_config queues[SA_DIRECTIONS];
    struct sa_impairment impairments[SA_DIRECTIONS];
    uint64_t outbox_bytes;  /* limit of a port's outbox if it has a rate; else that of queues[SA_DIRECTION_DOWN] holds */
    int64_t grain_ns;       /* with a rate or delay: how long a packet may wait to be sent together with others */
    int32_t wake;           /* an eventfd */
    uint32_t segments_max;  /* datagrams of one GSO send */
    uint32_t pool_packets;  /* capacity of all queues and links together */
    uint32_t datagram_bytes; /* the largest packet of a job, with its tag */
};

enum sa_switch_counter {
    SA_SWITCH_DROP_UNKNOWN_SENDER,
    SA_SWITCH_DROP_QUEUE_FULL, /* on the way down: the port's queue, or its outbox */
    SA_SWITCH_DROP_POOL,
    SA_SWITCH_ECN_MARKED,      /* on the way down */
    SA_SWITCH_DROP_UNAUTHENTICATED,
    SA_SWITCH_UP_DROP_QUEUE_FULL,
    SA_SWITCH_UP_ECN_MARKED,
    SA_SWITCH_UP_LOST,
    SA_SWITCH_UP_CORRUPTED,
    SA_SWITCH_UP_DUPLICATED,
    SA_SWITCH_UP_HELD_BACK,
    SA_SWITCH_DOWN_LOST,
    SA_SWITCH_DOWN_CORRUPTED,
    SA_SWITCH_DOWN_DUPLICATED,
    SA_SWITCH_DOWN_HELD_BACK,
    SA_SWITCH_COUNTERS
};

#define SA_PORTS_MAX 65536u

/* Returns NULL without memory. */
struct sa_switch *sa_switch_new(const struct sa_switch_config *config);
void sa_switch_free(struct sa_switch *sw);

/* Set the address of a port (< SA_PORTS_MAX, not in use); its faults restart. 0, or -1: no memory, and nothing has
   changed. */
int sa_switch_set_port(struct sa_switch *sw, uint32_t number, const struct sa_address *address);
/* Remove a port and drop all that waits for it. The caller has evicted its jobs from the plane. */
void sa_switch_clear_port(struct sa_switch *sw, uint32_t number);

/* Whether results for several workers of a job are sent once, to its group (SA_GROUP), which the kernel copies for
   each. Addresses are IPv4. Without a queue, a rate or impairments down; while a port has a backlog each gets its
   own. */
void sa_switch_multicast(struct sa_switch *sw, uint32_t job_id, bool on);

/* Packets of a job have tags from now on (A1), of its children and of its parent's hop, whose only child is this switch;
   NULL: none. The switch frees both, and those that it had for the job before. */
void sa_switch_authenticate(struct sa_switch *sw, uint32_t job_id, struct sa_hop *children, struct sa_hop *parent);

/* Serve until `wake` is written (1), CLOCK_MONOTONIC is until_ns (0), or an error: -errno. The caller may use ports,
   plane and counters between two runs. */
int sa_switch_run(struct sa_switch *sw, int64_t until_ns);

/* SA_SWITCH_COUNTERS numbers that live as long as the switch. */
const uint64_t *sa_switch_counters(const struct sa_switch *sw);
