/* Counts the bytes that come through a link, by their sender. */
#ifndef SWITCHAGG_SIM_WATCH_H
#define SWITCHAGG_SIM_WATCH_H

#include "emulation/sim/native/link.h"

/* job: of a packet of method switch, as it says; else -1. */
struct sim_counted {
    uint64_t bytes; /* on the wire */
    int32_t job;
    uint32_t sender, flow, used;
};

struct sim_watch;

/* Count frames that are sent from now on, as they arrive. Returns NULL without memory. */
SA_EXPORT struct sim_watch *sa_sim_watch(struct sim_link *link);

/* The counts since the last call, by job, or sender and flow; returns how many there are. They are valid until the next
   frame. */
SA_EXPORT uint32_t sa_sim_watched(struct sim_watch *watch, const struct sim_counted **counted);

#endif
