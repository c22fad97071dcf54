/* Hosts and programs of switches that Python drives, on links in C. Links treat their frames as any other.

   A frame with bytes is a body as C's own: a packet of method `switch`, which C's hosts and data planes understand as well, or
   one between hosts in Python. A frame without bytes (a segment of TCP) is an object that Python keeps under a number, as
   long as a body stands for it; then the number is free for another. */
#ifndef SWITCHAGG_SIM_PYTHON_HOST_H
#define SWITCHAGG_SIM_PYTHON_HOST_H

#include "emulation/sim/native/forward.h"

struct sim_charge; /* pausing.h */

/* An object has arrived; and Python keeps the damaged object as another. */
typedef void (*sim_arrive)(uint32_t object, uint32_t sender, uint32_t to);
typedef void (*sim_damage)(uint32_t object, uint32_t as);

/* So many bytes have arrived, at a host or, is_packet, at a host or switch. data: NULL: their checksum is wrong. */
typedef void (*sim_arrive_bytes)(uint32_t is_packet, const uint8_t *data, uint32_t length, uint32_t sender, uint32_t to);

struct sim_python {
    struct sim_node node; /* at all addresses of such hosts */
    uint32_t next;        /* the number of the next object: Python reads it in place */
    uint32_t count, room, idle_count;
    uint32_t *bodies; /* of an object, by number */
    uint32_t *idle;   /* numbers that are free */
    struct sa_sim *sim;
    sim_arrive arrive;
    sim_damage damage;
    sim_arrive_bytes arrive_bytes;
};

/* A simulation has one. Returns NULL without memory. */
SA_EXPORT struct sim_python *sa_sim_python(struct sa_sim *sim, sim_arrive arrive, sim_damage damage,
                                           sim_arrive_bytes arrive_bytes);

/* Let an address be one of such a host, beside a host in C, if one is there. Returns 0, or -1 without memory. */
SA_EXPORT int sa_sim_python_at(struct sim_python *python, uint32_t address);

/* Let packets for a switch go to its program in Python, or, NULL, to its plane. */
SA_EXPORT void sa_sim_program(struct sim_switch *at, struct sim_python *python, uint32_t address);

/* Queue the object that Python keeps as `next` on a link. length, flow, crc: as of a body and its
   digest. charge: of sa_sim_backlog, or NULL. 1; 0: it was dropped; -1: no memory. */
SA_EXPORT int sa_sim_send_object(struct sim_python *python, struct sim_link *link, uint32_t length,
                                 uint32_t wire_bytes, uint32_t flow, uint32_t crc, struct sim_charge *charge,
                                 int64_t ready_ns, uint32_t sender, uint32_t to);

/* The same of bytes. */
SA_EXPORT int sa_sim_send_bytes(struct sim_python *python, struct sim_link *link, uint32_t is_packet,
                                const uint8_t *data, uint32_t length, uint32_t wire_bytes, int64_t ready_ns,
                                uint32_t sender, uint32_t to);

/* Send packets of `length` bytes, one after the other, each to the same addresses; bits: of their `to`. 0, or -1: no memory. */
SA_EXPORT int sa_sim_send_results(struct sim_switch *at, const uint8_t *packets, uint32_t count, uint32_t length,
                                  const uint32_t *ports, uint32_t port_count, uint32_t bits);

/* State of a link's queue, as in link.h. */
SA_EXPORT uint64_t sa_sim_backlog_bytes(const struct sim_link *link, int64_t now_ns);
SA_EXPORT uint64_t sa_sim_backlog_of(const struct sim_link *link, uint32_t kind);
SA_EXPORT int64_t sa_sim_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes);

#endif
