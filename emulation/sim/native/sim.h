/* The packet simulator: links, switches and hosts, event for event as their oracle in Python (tests/oracles). Python builds the
   world, and what happens in it from then on is a function of that: no clock, no threads, no order of addresses.

   A kind of host (worker.h is one) is a struct that begins with `struct sim_node`, whose `receive` is what it does with
   a frame for one of its addresses. It is put at them with sim_attach, sends with sim_link_send on its own link, has
   timers by sim_schedule or `struct sim_alarm`, and keeps a credit of bytes in the link's queue by `struct sim_uplink`
   (host.h). Frames are `struct sim_body` (body.h): their bytes, or a kind of their own, whose `data` say what they
   stand for. C calls `sim_notice` with a host's number where Python must see something, in the middle of an event,
   so that Python's answer (launch, schedule, stop) happens right there, as it does in the oracle. */
#ifndef SWITCHAGG_SIM_H
#define SWITCHAGG_SIM_H

#include "switchagg/native/abi.h"
#include "emulation/sim/native/events.h"

/* In the `to` of a frame: as emulation/sim/network/simulated_link.py. */
#define SIM_NODE_MASK 0x7fffu
#define SIM_CLASS_SHIFT 16u
#define SIM_CLASS_MASK 7u
#define SIM_ECT (1u << 20)
#define SIM_CE (1u << 21)
#define SIM_DROPPABLE (1u << 22)
#define SIM_CLASSES 8u
#define SIM_BEST_EFFORT (SIM_CLASSES - 1u)

#define SIM_UDP_FRAMING_BYTES 42u     /* Ethernet, IP and UDP headers */
#define SIM_MESSAGE_FRAMING_BYTES 34u /* Ethernet and IP headers, of frames that begin behind them */
#define SIM_UNITS 8000000000ull       /* one byte at a rate in bit/s: so many units of 1/rate ns */

/* receive(frame, sender, to), as of Python's nodes. It takes over the hold on the body. */
struct sim_node {
    void (*receive)(struct sim_node *node, struct sim_body *body, uint32_t sender, uint32_t to);
    void (*free)(struct sim_node *node); /* with the simulation, of nodes that sim_own got */
    struct sim_node *next;
    /* As `sim_look`, from step 1 on: its own first SIM_LOOK_BYTES are there. Or NULL. */
    void (*look)(struct sim_node *node, const struct sim_entry *entry, uint32_t step);
    /* The first instant at which Python may have to see something of a host, if no call fails; now_ns or before: at once. */
    int64_t (*quiet_ns)(const struct sim_node *node, int64_t now_ns, uint64_t rate_bps);
};

/* What a trace has of an event. */
struct sim_record {
    int64_t time_ns;
    uint32_t sender, to;
    uint64_t content; /* CRC-32 of the frame; 0 of a timer */
    uint64_t sequence;
};

#define SIM_LOOK_BYTES 320u

enum sim_end { SIM_STOPPED, SIM_NOTHING_LEFT, SIM_UNFINISHED, SIM_NO_MEMORY };

typedef void (*sim_notify)(uint32_t host); /* Python: something of a host is to be seen */
typedef void (*sim_due)(uint64_t number);  /* Python: an event that it scheduled */

struct sim_message;
struct sim_partitions;
struct sim_link;

/* A simulation, or a partition of one. Partition 0 has what Python schedules, and, if it is the only one, all else. */
struct sa_sim {
    int64_t now_ns; /* this and the next six: Python reads those of partition 0 in place */
    uint64_t events;
    uint32_t stopped;
    uint32_t size_only; /* frames are heads without values */
    uint32_t stray;  /* an address, plus 1, to which a frame came, and nobody is there */
    uint32_t failed; /* Python has raised what the run ends with: what is left of the event doesn't happen */
    uint64_t windows; /* in which partitions didn't wait for each other */
    uint64_t sequence; /* of the event that is happening */
    struct sim_partitions *all;
    uint32_t number;
    uint32_t traced_bytes; /* of each frame; 0: nothing is traced */
    struct sim_queue queue;
    struct sim_pool pool;
    struct sim_message *idle_messages;
    struct sim_node *owned;
    struct sim_record *records;
    uint64_t record_count, record_room;
    struct sim_link *incoming; /* links from other partitions */
    /* Of the window: its events; the first arrival of what it sent to others, and what comes next, that or its own; a host,
       plus 1, of which Python must see something, and what is done before. */
    uint64_t window_events;
    int64_t sent_ns, next_ns;
    uint32_t noticed;
    void (*fail)(void *failing);
    void *failing;
} __attribute__((aligned(64)));

static inline void sim_schedule(struct sa_sim *sim, int64_t time_ns, sim_action act, void *object, uint32_t sender,
                                uint32_t to) {
    sim_queue_other(&sim->queue, time_ns, act, object, NULL, sender, to);
}

/* Let Python see something of a host; 0: what is left of the event doesn't happen. */
int sim_notice(struct sa_sim *sim, uint32_t host);

/* Let the node be freed with the simulation. */
void sim_own(struct sa_sim *sim, struct sim_node *node);

/* Let the node take frames for this address. Returns 0, or -1 without memory. */
int sim_attach(struct sa_sim *sim, uint32_t address, struct sim_node *node);

/* A new body; NULL, and the run ends: no memory. */
struct sim_body *sim_body(struct sa_sim *sim, uint32_t room_bytes);

SA_EXPORT struct sa_sim *sa_sim_new(uint32_t traced_bytes, sim_notify notify, sim_due due);
SA_EXPORT void sa_sim_free(struct sa_sim *sim);
SA_EXPORT void sa_sim_leave_values(struct sa_sim *sim);

/* Let `due(number)` happen at time_ns, as if a partition had scheduled it; sender, to, content: as a trace has it. Returns 0, or -1 without memory. */
SA_EXPORT int sa_sim_schedule(struct sa_sim *sim, int64_t time_ns, uint64_t number, uint32_t sender, uint32_t to,
                              uint64_t content);
SA_EXPORT uint32_t sa_sim_pending(const struct sa_sim *sim);

/* Let up to so many events happen, until `stopped` is set; returns enum sim_end. */
SA_EXPORT uint32_t sa_sim_run(struct sa_sim *sim, uint64_t events);

/* Frames traced since the last call, valid until the next run. */
SA_EXPORT uint64_t sa_sim_records(struct sa_sim *sim, const struct sim_record **records);

#endif
