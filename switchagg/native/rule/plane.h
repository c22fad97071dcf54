/* The native data plane: S1 to S8 and H1 to H5 for several jobs, one packet at a time, no allocation per
   packet. It is a pure function of (registers, packet): it has no clock, no threads, no randomness. A single thread at
   a time may use a plane. */
#pragma once

#include "switchagg/native/abi.h"
#include "switchagg/native/rule/job.h"

struct sa_plane;

/* Where a result goes: `count` ports. Valid until the next admit or evict. */
struct sa_targets {
    const uint32_t *ports;
    uint32_t count;
};

/* Where a switch below another sends its sums, and its rank there (H1). */
struct sa_parent {
    uint32_t port;
    uint32_t rank;
};

/* A packet causes a result with values (`size` bytes) and a header-only one, each for some ports or none (S6). */
struct sa_results {
    struct sa_targets valued;
    struct sa_targets header_only;
    uint32_t size;
};

/* Ports of a job in the order of its ranks, from `first` on, and round again; behind them the parent's, if there is one. */
struct sa_ranks {
    uint32_t first;
    uint32_t count;
};

/* A run is consecutive results of a bundle with the same targets. */
struct sa_run {
    uint32_t count; /* packets that caused results, at least 1 */
    uint32_t size;  /* of a result with values */
    uint32_t job_id;
    struct sa_ranks valued; /* count 0: these packets caused none */
    struct sa_ranks header_only;
};

/* The registers of one slot version lie side by side: a packet touches one cache line of them. */
struct sa_registers {
    uint64_t seen;
    uint32_t held;
    uint32_t marked; /* or 0: SA_MARKED, as results have it */
};

/* Returns NULL without memory. Registers are allocated per admitted job; Python's check_admission decides whether a job
   fits. */
SA_EXPORT struct sa_plane *sa_plane_new(void);
SA_EXPORT void sa_plane_free(struct sa_plane *plane);

/* Take a job, or a new generation of one, that Python's check_admission has accepted; ports[rank], of so many ranks
   here. parent: of a switch below another, else NULL. Returns 0, or -1 without memory, and nothing has changed. */
SA_EXPORT int sa_plane_admit(struct sa_plane *plane, const struct sa_job *job, const uint32_t *ports, uint32_t ranks,
                             const struct sa_parent *parent);
SA_EXPORT void sa_plane_evict(struct sa_plane *plane, uint32_t job_id);

/* Decide on one datagram and count it. For outcomes with sa_sends `results` says what is sent where, `out` (room for a
   packet of any admitted job) holds the result with values and `header_only` (SA_HEADER_BYTES) the header-only one, if there are any; else
   all are untouched. Nothing may overlap. Defined for any bytes, at any alignment. */
SA_EXPORT enum sa_outcome sa_plane_accept(struct sa_plane *plane, const uint8_t *datagram, uint32_t size, uint32_t port,
                                          uint8_t *out, uint8_t *header_only, struct sa_results *results);

/* The same for `rows` datagrams of `size` bytes, back to back. `out` (room for `rows` packets of any admitted job) gets the
   results with values, `header_only` (rows * SA_HEADER_BYTES) the header-only ones, each in order and back to back, `runs` (up to `rows`
   entries) where they go. Returns the number of runs. */
SA_EXPORT uint32_t sa_plane_process(struct sa_plane *plane, const uint8_t *bundle, uint32_t rows, uint32_t size,
                                    uint32_t port, uint8_t *out, uint8_t *header_only, struct sa_run *runs);

/* From now on packets are headers without the values that they speak of, and so are results: for simulations of what takes
   how long. Nothing is summed, all else is as ever. */
SA_EXPORT void sa_plane_leave_values(struct sa_plane *plane);

/* Read the chunk and the ranks that a slot version holds: 0, or -1 if no admitted job owns the slot. */
SA_EXPORT int sa_plane_seen(const struct sa_plane *plane, uint32_t slot, uint32_t version, uint32_t *chunk,
                            uint64_t *ranks);

/* All registers of an admitted job, to be saved or restored as they are; NULL: no such job. Valid until it is
   evicted. */
SA_EXPORT uint8_t *sa_plane_registers(struct sa_plane *plane, uint32_t job_id, uint64_t *size_bytes);

/* Returns SA_OUTCOMES numbers, which are valid as long as the plane. */
SA_EXPORT const uint64_t *sa_plane_counters(const struct sa_plane *plane);
