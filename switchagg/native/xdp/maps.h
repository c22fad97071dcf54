/* What Python and the programs in the kernel share: configuration, and values of maps. Big-endian where the wire is. A
   BPF program includes it behind <linux/bpf.h>. */
#pragma once

#include "switchagg/native/rule/wire.h"

#ifndef __bpf__
struct bpf_spin_lock {
    uint32_t val;
};
#endif

/* Most elements per packet of the two objects that xdp.bpf.c is built to. */
#define SA_XDP_ELEMENTS_MTU_1500 360
#define SA_XDP_ELEMENTS_JUMBO 2240

#define SA_XDP_ADDRESSES 16u

/* Counters behind those of enum sa_outcome. */
enum sa_xdp_extra {
    SA_XDP_DROP_CHECKSUM = SA_OUTCOMES, /* P5 */
    SA_XDP_UP_LOST,       /* impairments */
    SA_XDP_DOWN_LOST,
    SA_XDP_ECN_MARKED,
    SA_XDP_RESULTS_SENT, /* one for each target */
    SA_XDP_SEND_ERRORS,
    SA_XDP_EXTRAS
};

/* The loader sets this before the program is loaded, so that the verifier removes unused code. The only constants: they
   are the whole of .rodata. */
struct sa_xdp_configuration {
    uint16_t port;
    uint16_t ticket[3]; /* random: source address of what sa_switch passes up, so that no other packet has it */
    uint32_t partial_accepted; /* a port may carry checksums that are not yet complete */
    uint32_t impaired;
    uint32_t owner_pid; /* process that loaded the program, and when it started, in clock ticks since boot */
    uint32_t address_count;
    uint64_t owner_start;
    uint32_t addresses[SA_XDP_ADDRESSES];
};

/* A slot version before its sums. job: the owner, for packets still in flight when the slot was given to another job;
   requesters: below another switch. The lock must be a member of the map's value itself. */
#define SA_XDP_SLOT \
    struct bpf_spin_lock lock; \
    uint16_t job; \
    uint16_t marked; \
    uint32_t generation; \
    uint32_t held; \
    uint64_t seen; \
    uint64_t requesters;
struct sa_xdp_slot {
    SA_XDP_SLOT
};

/* Where a worker is. Most is learnt from its own packets: no result is sent before every worker has sent one. A parent
   sends nothing before it got something: the loader says where it is. */
struct sa_xdp_member {
    uint32_t address;
    uint16_t port;
    uint16_t ethernet[6]; /* learnt: of a frame to it, destination and source */
    uint16_t lost;           /* set by the loader when its interface is gone or down: learn another */
    uint32_t switch_address; /* learnt */
    uint32_t ifindex;        /* learnt; 0: not yet */
};

struct sa_xdp_range {
    uint32_t first_slot;
    uint32_t window;
};

struct sa_xdp_job {
    uint32_t generation;
    uint32_t workers;
    uint32_t elements;
    uint32_t stream_count;
    uint64_t full;
    uint32_t parent; /* its rank there, counted from 1; 0: this is the root. Where it is: behind the workers */
    uint32_t padding;
    struct sa_xdp_member members[SA_WORKERS_MAX];
    struct sa_xdp_range streams[SA_STREAMS_MAX];
};

/* The faults of one port: probabilities in units of 2^-32, and the generator they draw from, one per CPU. */
struct sa_xdp_impairment {
    uint32_t loss_in;
    uint32_t loss_out;
    uint32_t mark_out;
    uint32_t padding;
    uint64_t state;
};

/* The map of loss.bpf.c. */
struct sa_loss {
    uint64_t state;
    uint64_t passed;
    uint64_t lost;
    uint32_t threshold; /* probability in units of 2^-32 */
    uint32_t padding;
};

/* The map of copies.bpf.c, as on the wire. */
struct sa_copies_member {
    uint8_t mac[6];
    uint16_t port;
    uint32_t address;
};

struct sa_copies_job {
    uint32_t workers;
    uint16_t port; /* of the switch */
    uint16_t unused;
    struct sa_copies_member members[SA_WORKERS_MAX];
};
