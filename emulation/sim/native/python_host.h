/* Hosts that Python drives, on links in C. A frame of theirs is an object that Python keeps under a number, as long as
   a body stands for it; then the number is free for another. Links treat such a frame as any other: only its damage,
   and its arrival at an address of such a host, are Python's. */
#ifndef SWITCHAGG_SIM_PYTHON_HOST_H
#define SWITCHAGG_SIM_PYTHON_HOST_H

#include "emulation/sim/native/link.h"

/* How a frame is sent: past what waits; and whether it has no bits that could flip, so that damage takes no random
   numbers. */
#define SIM_PYTHON_AHEAD 1u
#define SIM_PYTHON_BODILESS 2u

typedef void (*sim_arrive)(uint32_t frame, uint32_t sender, uint32_t to);
typedef uint32_t (*sim_damage)(uint32_t frame, uint32_t as, uint32_t burst, uint32_t first_bit);

struct sim_python {
    struct sim_node node; /* at all addresses of such hosts */
    uint32_t next;        /* the number of the next frame: Python reads it in place */
    uint32_t count, room, idle_count;
    uint32_t *bodies; /* of a frame, by number */
    uint32_t *idle;   /* numbers that are free */
    struct sa_sim *sim;
    sim_arrive arrive;
    sim_damage damage;
};

/* Returns NULL without memory. arrive: a frame is there, at an address of such a host. damage: Python keeps the frame,
   with these bits flipped, as another, whose CRC-32 it returns. */
SA_EXPORT struct sim_python *sa_sim_python(struct sa_sim *sim, sim_arrive arrive, sim_damage damage);

/* Whether anybody is at an address; and let it be one of such a host. Returns 0, or -1 without memory. */
SA_EXPORT uint32_t sa_sim_attached(const struct sa_sim *sim, uint32_t address);
SA_EXPORT int sa_sim_python_at(struct sim_python *python, uint32_t address);

/* Queue the frame that Python keeps as `next`. length, flow, crc: as of a body and its digest. 1; 0: it was dropped; -1: no
   memory. */
SA_EXPORT int sa_sim_python_send(struct sim_python *python, struct sim_link *link, uint32_t how, uint32_t length,
                                 uint32_t wire_bytes, uint32_t flow, uint32_t crc, int64_t ready_ns, uint32_t sender,
                                 uint32_t to);

/* State of a link's queue, as in link.h. */
SA_EXPORT uint64_t sa_sim_backlog_bytes(const struct sim_link *link, int64_t now_ns);
SA_EXPORT uint64_t sa_sim_backlog_of(const struct sim_link *link, uint32_t kind);
SA_EXPORT int64_t sa_sim_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes);

#endif
