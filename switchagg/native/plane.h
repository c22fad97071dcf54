/* The native data plane: S1 to S8 of PROTOCOL.md for several jobs, one packet at a time, no allocation per packet.
   A pure function of (registers, packet): no clock, no threads, no chance. Not thread-safe. */
#ifndef SWITCHAGG_PLANE_H
#define SWITCHAGG_PLANE_H

#include "job.h"

struct sa_plane;

/* Where a result goes: `count` ports. Valid until the next admit or evict. */
struct sa_targets {
    const uint32_t *ports;
    uint32_t count;
};

/* NULL: no memory. */
struct sa_plane *sa_plane_new(uint32_t slots, uint32_t elements);
void sa_plane_free(struct sa_plane *plane);

/* Take a job, or a new generation of one, that Python's check_admission has accepted; ports[rank]. 0, or -1: no memory,
   and nothing has changed. */
int sa_plane_admit(struct sa_plane *plane, const struct sa_job *job, const uint32_t *ports);
void sa_plane_evict(struct sa_plane *plane, uint32_t job_id);

/* Decide on one datagram and count it. For SA_BROADCAST and SA_REPLY, `out` (size bytes, not overlapping) holds the
   result and `targets` says who gets it; else both are untouched. Total: defined for any bytes. */
enum sa_outcome sa_plane_accept(struct sa_plane *plane, const uint8_t *datagram, uint32_t size, uint32_t port,
                                uint8_t *out, struct sa_targets *targets);

/* What a slot version holds: 0, or -1 if no admitted job owns the slot. */
int sa_plane_seen(const struct sa_plane *plane, uint32_t slot, uint32_t version, uint32_t *chunk, uint64_t *ranks);

/* SA_OUTCOMES numbers that live as long as the plane. */
const uint64_t *sa_plane_counters(const struct sa_plane *plane);

#endif
