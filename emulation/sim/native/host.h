/* Hosts of any kind have a timer that may be set earlier, and a bounded credit of bytes in the queue of their link. As
   `Alarm` and `HostUplink` of emulation/sim/network/host_uplink.py. */
#ifndef SWITCHAGG_SIM_HOST_H
#define SWITCHAGG_SIM_HOST_H

#include "emulation/sim/native/link.h"

#define SIM_ALL_CLASSES UINT32_MAX

struct sim_alarm {
    struct sa_sim *sim;
    void (*ring)(void *host); /* it may ring early: ask again what is due, and set it again */
    void *host;
    int64_t at_ns; /* -1: not set */
};

void sim_alarm_init(struct sim_alarm *alarm, struct sa_sim *sim, void (*ring)(void *host), void *host);

/* Ring at the deadline or before; a negative one changes nothing. */
void sim_alarm_set(struct sim_alarm *alarm, int64_t deadline_ns);

struct sim_burst;

struct sim_uplink {
    uint32_t waiting;
    uint32_t kind; /* the class whose credit it is, or SIM_ALL_CLASSES */
    struct sim_link *link;
    uint32_t frame_bytes;
    uint64_t credit_bytes;
    uint32_t (*give)(void *host, uint32_t limit, uint32_t kind); /* sends up to so many frames and returns how many */
    void *host;
    struct sim_burst *bursts; /* where addresses share the link: what was given, and when it has left */
    uint32_t burst_first, burst_count, burst_room;
};

/* frame_bytes: of the largest frame, framing included. */
void sim_uplink_init(struct sim_uplink *uplink, struct sim_link *link, uint32_t kind, uint32_t frame_bytes,
                     uint32_t (*give)(void *host, uint32_t limit, uint32_t kind), void *host);

/* Send what the host has, as far as the credit goes; continues by itself. */
void sim_uplink_pump(struct sim_uplink *uplink);
void sim_uplink_end(struct sim_uplink *uplink);

#endif
