/* Partitions of a simulation: a switch, its hosts and the links that leave them are one, if the topology has lookahead, which
   is the least delay of the links between partitions. Each has a queue of its own, and a counter that numbers what it
   schedules: events of one instant happen in the order of the partitions that scheduled them, then as they were scheduled.
   So the order within a partition doesn't depend on the others'.

   While nothing concerns Python, events happen in *windows* of that delay: in a window what a partition does can't reach
   another one, so that any number of threads may take partitions in any order, with the same results. Frames that cross
   wait at their link until the window is over. Hosts say until when Python need see nothing of them (`quiet_ns`): a call
   can't end before what it lacks has come through its host's link. From there on, and wherever Python takes part in what
   happens (its hosts, programs and parties), events happen one by one, in the same order. */
#ifndef SWITCHAGG_SIM_PARTITIONS_H
#define SWITCHAGG_SIM_PARTITIONS_H

#include "emulation/sim/native/link.h"

#define SIM_PARTITIONS_MAX 1024u
#define SIM_SEQUENCE_BITS 34u /* of a partition's counter; its number is above */

struct sim_team; /* team.h */

struct sim_partitions {
    struct sa_sim **each;
    uint32_t count;
    uint32_t in_turn;      /* Python takes part: no windows */
    uint32_t in_window;    /* what crosses waits */
    uint32_t current;      /* where events happen one by one */
    uint32_t python_acted; /* any partition may have other events now */
    int64_t least_ns;      /* no frame crosses sooner than so long after it was sent */
    int64_t window_ns;     /* the end of the window */
    int64_t quiet_ns;
    uint64_t host_rate_bps; /* the highest of links to hosts, */
    int64_t spread_ns;      /* and how much later than another one a frame of theirs may arrive by faults */
    uint32_t parity;        /* of the window: what crosses is taken in the next one */
    uint32_t leaves;
    sim_match *matches; /* heads of partitions, as of a queue's lanes */
    uint32_t changed, changes; /* the partition that got a frame in this event, and how many got one */
    struct sim_node **nodes; /* by address: hosts */
    uint32_t node_count;
    struct sim_node *python; /* takes the frames of hosts in Python */
    sim_notify notify;
    sim_due due;
    struct sim_team *team;  /* NULL: one thread */
    uint64_t threaded_events; /* a window after one with fewer has one thread */
    uint64_t window_events;   /* of the last window */
};

/* Hand a frame to the partition at the link's end. It takes over the hold on the body. */
void sim_cross(struct sim_link *link, int64_t time_ns, struct sim_body *body, uint32_t sender, uint32_t to);

/* Before Python is called: all clocks are right. */
void sim_before_python(struct sa_sim *sim);

/* Another partition, before any link of its; NULL: there are SIM_PARTITIONS_MAX, or no memory. */
SA_EXPORT struct sa_sim *sa_sim_partition(struct sa_sim *sim);

/* Use so many threads, this one among them, for windows of which the one before had so many events. Returns 0, or -1: it
   can't have them. */
SA_EXPORT int sa_sim_threads(struct sa_sim *sim, uint32_t threads, uint64_t events_least);

/* For partitions.c and sim.c, of each other. */
struct sa_sim *sim_new(struct sim_partitions *all, uint32_t traced_bytes);
void sim_happen(struct sa_sim *sim, const struct sim_event *event, struct sa_sim *recorder);
void sim_record(struct sa_sim *sim, const struct sim_record *record);
void sim_look_ahead(struct sim_partitions *all);
uint32_t sim_run_partitions(struct sa_sim *first, uint64_t events);

#endif
