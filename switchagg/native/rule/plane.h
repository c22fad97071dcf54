/* The native data plane: S1 to S8 of PROTOCOL.md for several jobs, one packet at a time, no allocation per packet.
   A pure function of (registers, packet): no clock, no threads, no randomness. Not thread-safe. */
#ifndef SWITCHAGG_PLANE_H
#define SWITCHAGG_PLANE_H

#include "abi.h"
#include "rule/job.h"

struct sa_plane;

/* Where a result goes: `count` ports. Valid until the next admit or evict. */
struct sa_targets {
    const uint32_t *ports;
    uint32_t count;
};

/* Consecutive results of a bundle with the same targets. Field by field as `RUN` in dataplane/native.py. */
struct sa_run {
    uint32_t count;   /* results, at least 1 */
    uint32_t outcome; /* SA_BROADCAST: to all workers of the job; SA_REPLY: to where the bundle came from */
    uint32_t job_id;
};

/* NULL: no memory. Registers are allocated per admitted job; Python's check_admission decides whether a job fits. */
SA_EXPORT struct sa_plane *sa_plane_new(void);
SA_EXPORT void sa_plane_free(struct sa_plane *plane);

/* Take a job, or a new generation of one, that Python's check_admission has accepted; ports[rank]. 0, or -1: no memory,
   and nothing has changed. */
SA_EXPORT int sa_plane_admit(struct sa_plane *plane, const struct sa_job *job, const uint32_t *ports);
SA_EXPORT void sa_plane_evict(struct sa_plane *plane, uint32_t job_id);

/* Decide on one datagram and count it. For SA_BROADCAST and SA_REPLY, `out` (size bytes, not overlapping) holds the
   result and `targets` the ports it goes to; else both are untouched. Defined for any bytes, at any alignment. */
SA_EXPORT enum sa_outcome sa_plane_accept(struct sa_plane *plane, const uint8_t *datagram, uint32_t size, uint32_t port,
                                          uint8_t *out, struct sa_targets *targets);

/* The same for `rows` datagrams of `size` bytes, back to back. `out` (rows * size bytes) gets the results, in order and
   back to back, `runs` (up to `rows` entries) where they go. Returns the number of runs. */
SA_EXPORT uint32_t sa_plane_process(struct sa_plane *plane, const uint8_t *bundle, uint32_t rows, uint32_t size,
                                    uint32_t port, uint8_t *out, struct sa_run *runs);

/* What a slot version holds: 0, or -1 if no admitted job owns the slot. */
SA_EXPORT int sa_plane_seen(const struct sa_plane *plane, uint32_t slot, uint32_t version, uint32_t *chunk,
                            uint64_t *ranks);

/* All registers of an admitted job, to be saved or restored as they are; NULL: no such job. Valid until it is
   evicted. */
SA_EXPORT uint8_t *sa_plane_registers(struct sa_plane *plane, uint32_t job_id, uint64_t *size_bytes);

/* SA_OUTCOMES numbers, valid as long as the plane. */
SA_EXPORT const uint64_t *sa_plane_counters(const struct sa_plane *plane);

#endif
