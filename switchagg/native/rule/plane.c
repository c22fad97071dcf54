/* The native data plane; see plane.h. The checks are those of dataplane/reference.py, in its order. */
#include "switchagg/native/rule/plane.h"
#include "switchagg/native/rule/partial.h"
#include "switchagg/native/rule/slot.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define JOB_IDS 65536u
#define LINE_BYTES 64u /* of a cache */

/* A job's share of the switch. Index of a slot version: 2 * (slot - first_slot) + version; its sums are row slot -
   first_slot + version * slots, since slots are written one after the other, and the next row is fetched then. */
struct share {
    struct share *next;
    uint32_t job_id;
    uint32_t generation;
    uint32_t ranks; /* its workers here, or the switches below */
    uint32_t elements;
    uint32_t values; /* of a packet that has any: as many, or none (sa_plane_leave_values) */
    uint32_t stream_count;
    uint32_t first_slot;
    uint32_t slots;
    uint64_t full;
    uint64_t *apart; /* of a slot version: asked (H4), or have (Q4); NULL: this switch is the root, and sums are full */
    uint32_t partial;
    uint32_t backups;
    uint32_t flags; /* of the byte `rank`, that its packets may have */
    uint32_t parent_rank;
    void *memory;
    uint64_t register_bytes;
    struct sa_registers *registers; /* and behind them the sums */
    uint32_t *sums;
    uint64_t stride; /* of a row of sums: `elements`, and as many more as fill cache lines */
    uint32_t ports[2 * SA_WORKERS_MAX]; /* twice, so that all but one rank's are one piece; or once, and the parent's */
    struct sa_stream streams[SA_STREAMS_MAX];
};

struct sa_plane {
    uint64_t counters[SA_OUTCOMES];
    bool size_only; /* without values */
    struct share *first;
    struct share *by_id[JOB_IDS]; /* most pages of it are never touched */
};

/* ---- S4 and S6: passes over the values */

/* Datagrams have any alignment: a memcpy of constant size is an unaligned load in C, and it vectorises. */
SA_INLINE uint32_t load(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return SA_BE32(value);
}

SA_INLINE void store(uint8_t *to, uint32_t value) {
    value = SA_BE32(value);
    memcpy(to, &value, sizeof value);
}

#define SA_PASS(name, action)                                                                                          \
    SA_VECTORISED static void name(uint32_t *restrict sums, const uint8_t *restrict values, uint32_t count) {          \
        for (uint64_t i = 0; i < count; i++) sums[i] = sa_combine(action, sums[i], load(values + 4 * i));              \
    }
SA_PASS(write_values, SA_WRITE)
SA_PASS(add_values, SA_ADD)
SA_PASS(take_maxima, SA_MAXIMUM)

/* A pass of its own: with two rows to write at a time the combining one took twice as long. */
SA_VECTORISED static void emit(const uint32_t *restrict sums, uint8_t *restrict out, uint32_t count) {
    for (uint64_t i = 0; i < count; i++) store(out + 4 * i, sums[i]);
}

static void combine(enum sa_values action, uint32_t *sums, const uint8_t *values, uint32_t count) {
    switch (action) {
    case SA_WRITE: write_values(sums, values, count); break;
    case SA_ADD: add_values(sums, values, count); break;
    case SA_MAXIMUM: take_maxima(sums, values, count); break;
    case SA_KEEP: break;
    case SA_ZERO: memset(sums, 0, 4 * (size_t)count); break;
    }
}

/* ---- packets */

/* Whether a packet's place is one of the job's; SA_ABSORBED if it is (S1). Fields are in host byte order. */
SA_INLINE enum sa_outcome place_fault(const struct share *share, const struct sa_header *header) {
    if (header->generation != share->generation) return SA_DROP_GENERATION;
    if (header->stream >= share->stream_count) return SA_DROP_STREAM;
    const struct sa_stream *stream = &share->streams[header->stream];
    return header->slot - stream->first_slot >= stream->window ? SA_DROP_SLOT : SA_ABSORBED; /* below first_slot: huge */
}

/* By how many chunks a slot version goes on: two windows of the packet's stream, which S1 has found to be one (S2). */
SA_INLINE uint32_t two_windows_of(const struct share *share, const struct sa_header *header) {
    return 2 * share->streams[header->stream].window;
}

/* Why a well-formed packet without RESULT is no packet of an admitted job; SA_ABSORBED if it is one (S1, H2). */
SA_INLINE enum sa_outcome membership_fault(const struct share *share, const struct sa_header *header, uint32_t port) {
    if (!share) return SA_DROP_JOB;
    enum sa_outcome fault = place_fault(share, header);
    if (fault != SA_ABSORBED) return fault;
    uint32_t rank = header->rank & ~share->flags;
    if (rank >= share->ranks) return SA_DROP_RANK; /* with CLOSE, too */
    if (share->ports[rank] != port) return SA_DROP_PORT;
    uint32_t elements = share->elements;
    if (sa_route(header->kind) != SA_ROUTE_ALL) {
        if (share->apart && !share->partial) return SA_DROP_ROUTE;
        if (sa_owner(header->kind) >= share->ranks || share->ranks < 2) return SA_DROP_OWNER;
        if (!(sa_givers(header->kind, share->full) >> rank & 1)) elements = 0;
    }
    return header->elements == elements ? SA_ABSORBED : SA_DROP_ELEMENTS;
}

/* Address the results of a complete chunk with a route but ALL (S5, S6). gives: whether the packet's rank gives
   values. */
static void address(const struct share *share, uint32_t kind, uint32_t rank, bool gives, enum sa_outcome outcome,
                    struct sa_results *results) {
    const struct sa_targets none = {NULL, 0}, sender = {&share->ports[rank], 1};
    uint32_t owner = sa_owner(kind);
    struct sa_targets owner_targets = {&share->ports[owner], 1}, other_targets = {&share->ports[owner + 1], share->ranks - 1};
    if (outcome == SA_REPLY) {
        results->valued = gives ? none : sender;
        results->header_only = gives ? sender : none;
    } else {
        results->valued = sa_route(kind) == SA_ROUTE_TO_OWNER ? owner_targets : other_targets;
        results->header_only = sa_route(kind) == SA_ROUTE_TO_OWNER ? other_targets : owner_targets;
    }
}

/* Writes the header of a packet's result (S6, G3). */
SA_INLINE void result_header(const uint8_t *datagram, uint32_t elements, uint32_t marked, uint8_t *out) {
    memcpy(out, datagram, SA_HEADER_BYTES);
    out[3] = (uint8_t)((out[3] | SA_RESULT) & ~SA_RETRANSMISSION);
    out[offsetof(struct sa_header, rank)] |= (uint8_t)marked; /* the packet's own mark is among them */
    uint16_t field = SA_BE16((uint16_t)elements);
    memcpy(out + offsetof(struct sa_header, elements), &field, sizeof field);
}

/* ---- a switch below another, apart, so that others pay nothing for it */

static uint32_t *sums_of(const struct share *share, const struct sa_header *header, uint32_t *index) {
    uint32_t slot = header->slot - share->first_slot, version = header->kind & SA_VERSION ? 1 : 0;
    *index = 2 * slot + version;
    return share->sums + (slot + version * share->slots) * share->stride;
}

/* A child's packet, which S1 has let pass (H3, H4). */
__attribute__((noinline)) static enum sa_outcome accept_at_leaf(struct share *share, const struct sa_header *header,
                                                                const uint8_t *datagram, uint8_t *out,
                                                                struct sa_results *results) {
    uint32_t index, *sums = sums_of(share, header, &index);
    struct sa_registers *registers = &share->registers[index];
    struct sa_decision decision = sa_leaf_accept(&registers->held, &registers->seen, &registers->marked,
                                                 &share->apart[index], share->full, two_windows_of(share, header),
                                                 header->kind, header->chunk, header->rank);
    combine(decision.values, sums, datagram + SA_HEADER_BYTES, share->values);
    if (!sa_sends(decision.outcome)) return decision.outcome;
    uint32_t to = decision.outcome == SA_REPLY ? header->rank & SA_RANK_BITS : share->ranks;
    *results = (struct sa_results){{&share->ports[to], 1}, {NULL, 0}, SA_HEADER_BYTES + 4 * share->elements};
    result_header(datagram, share->elements, registers->marked, out);
    if (decision.outcome != SA_REPLY) {
        out[3] = (uint8_t)((out[3] & ~SA_RESULT) | (decision.outcome == SA_UP_AGAIN ? SA_RETRANSMISSION : 0));
        out[offsetof(struct sa_header, rank)] = (uint8_t)(share->parent_rank | registers->marked);
    }
    emit(sums, out + SA_HEADER_BYTES, share->values);
    return decision.outcome;
}

/* A well-formed packet with RESULT: an unknown sender, unless it is the parent's (H2, H5). */
__attribute__((noinline)) static enum sa_outcome accept_result(struct share *share, const struct sa_header *header,
                                                               const uint8_t *datagram, uint32_t port, uint8_t *out,
                                                               struct sa_results *results) {
    if (!share || !share->apart || share->partial || share->ports[share->ranks] != port) return SA_DROP_RESULT;
    enum sa_outcome fault = place_fault(share, header);
    if (fault != SA_ABSORBED) return fault;
    if (sa_route(header->kind) != SA_ROUTE_ALL) return SA_DROP_ROUTE;
    if (header->elements != share->elements) return SA_DROP_ELEMENTS;
    uint32_t index, *sums = sums_of(share, header, &index);
    struct sa_registers *registers = &share->registers[index];
    struct sa_decision decision = sa_leaf_take(registers->held, &registers->seen, share->full, header->chunk);
    if (decision.outcome != SA_BROADCAST) return decision.outcome;
    registers->marked = header->rank & SA_MARKED;
    combine(decision.values, sums, datagram + SA_HEADER_BYTES, share->values);
    *results = (struct sa_results){{share->ports, share->ranks}, {NULL, 0}, SA_HEADER_BYTES + 4 * share->elements};
    result_header(datagram, share->elements, registers->marked, out);
    emit(sums, out + SA_HEADER_BYTES, share->values);
    return SA_BROADCAST;
}

/* ---- partial sums, apart as well */

static struct sa_partial partial_of(const struct share *share, uint32_t index) {
    struct sa_registers *registers = &share->registers[index];
    return (struct sa_partial){.held = &registers->held, .seen = &registers->seen, .marked = &registers->marked,
                               .have = &share->apart[index], .full = share->full, .least = share->ranks - share->backups};
}

/* The header of the result of the chunk held. */
static void partial_header(const struct sa_registers *registers, const uint8_t *datagram, uint32_t elements, uint8_t *out) {
    result_header(datagram, elements, 0, out);
    uint8_t *rank = out + offsetof(struct sa_header, rank);
    *rank = (uint8_t)((*rank & SA_RANK_BITS) | registers->marked);
}

/* A packet of a job with partial sums that has values, or a route but ALL; S1 has let it pass. */
__attribute__((noinline)) static enum sa_outcome accept_partly(struct share *share, const struct sa_header *header,
                                                               const uint8_t *datagram, uint8_t *out, uint8_t *header_only,
                                                               struct sa_results *results) {
    uint32_t index, *sums = sums_of(share, header, &index), rank = header->rank & SA_RANK_BITS;
    const struct sa_registers *registers = &share->registers[index], *other = &share->registers[index ^ 1];
    uint32_t two_windows = two_windows_of(share, header), next = registers->held + two_windows / 2;
    uint64_t following = other->held == next ? other->seen : 0, waiting = 0;
    struct sa_partial slot = partial_of(share, index);
    struct sa_decision decision =
        sa_partial_accept(&slot, following, two_windows, header->kind, header->chunk, header->rank, &waiting);
    combine(decision.values, sums, datagram + SA_HEADER_BYTES, share->values);
    if (!sa_sends(decision.outcome)) return decision.outcome;
    uint32_t to = decision.outcome == SA_RESEND ? (uint32_t)__builtin_ctzll(waiting) : rank;
    *results = (struct sa_results){{&share->ports[to], 1}, {NULL, 0}, SA_HEADER_BYTES + 4 * share->elements};
    if (decision.outcome == SA_BROADCAST) results->valued = (struct sa_targets){share->ports, share->ranks};
    if (decision.outcome != SA_RESEND && sa_route(header->kind) != SA_ROUTE_ALL)
        address(share, header->kind, rank, header->elements != 0, decision.outcome, results);
    if (results->valued.count) {
        partial_header(registers, datagram, share->elements, out);
        if (decision.outcome == SA_RESEND) {
            struct sa_header resent;
            memcpy(&resent, out, sizeof resent);
            resent.kind &= SA_BE32(~(SA_ROUTE_BITS | 63u << 3));
            resent.chunk = SA_BE32(registers->held);
            memcpy(out, &resent, sizeof resent);
        }
        emit(sums, out + SA_HEADER_BYTES, share->values);
    }
    if (results->header_only.count) partial_header(registers, datagram, 0, header_only);
    return decision.outcome;
}

/* A datagram of a wrong length, unless it is a header-only one with route ALL of a job with partial sums (Q1). The header is in
   host byte order as far as sa_fault needs it. */
__attribute__((noinline)) static enum sa_outcome accept_header_only(struct sa_plane *plane, struct sa_header *header,
                                                             const uint8_t *datagram, uint32_t size, uint32_t port,
                                                             uint8_t *out, struct sa_results *results) {
    struct share *share = plane->by_id[SA_BE16(header->job)];
    if (size != SA_HEADER_BYTES || header->elements || sa_route(header->kind) != SA_ROUTE_ALL || !share || !share->partial)
        return SA_DROP_LENGTH;
    if (header->kind & SA_RESULT) return SA_DROP_RESULT;
    header->slot = SA_BE16(header->slot);
    header->generation = SA_BE32(header->generation);
    header->chunk = SA_BE32(header->chunk);
    enum sa_outcome fault = membership_fault(share, header, port);
    if (fault != SA_DROP_ELEMENTS) return fault;
    uint32_t index, *sums = sums_of(share, header, &index);
    struct sa_partial slot = partial_of(share, index);
    enum sa_outcome outcome = sa_partial_header_only(&slot, header->chunk, header->rank);
    if (outcome != SA_BROADCAST) return outcome;
    *results = (struct sa_results){{share->ports, share->ranks}, {NULL, 0}, SA_HEADER_BYTES + 4 * share->elements};
    partial_header(&share->registers[index], datagram, share->elements, out);
    emit(sums, out + SA_HEADER_BYTES, share->values);
    return outcome;
}

/* ---- */

/* Decide on a datagram of at least a header. routed: whether the route isn't ALL. */
SA_INLINE enum sa_outcome accept_one(bool routed, struct sa_plane *plane, const uint8_t *datagram, uint32_t size,
                                     uint32_t port, uint8_t *out, uint8_t *header_only, struct sa_results *results) {
    struct sa_header header;
    memcpy(&header, datagram, sizeof header);
    header.kind = SA_BE32(header.kind);
    if (!routed) header.kind &= ~SA_ROUTE_BITS; /* they are zero: now the compiler knows */
    header.elements = SA_BE16(header.elements);
    enum sa_outcome fault = sa_fault(header.kind, header.elements, size);
    if (fault == SA_DROP_LENGTH) return accept_header_only(plane, &header, datagram, size, port, out, results);
    if (fault != SA_ABSORBED) return fault;
    header.job = SA_BE16(header.job);
    header.slot = SA_BE16(header.slot);
    header.generation = SA_BE32(header.generation);
    header.chunk = SA_BE32(header.chunk);
    struct share *share = plane->by_id[header.job];
    if (header.kind & SA_RESULT) return accept_result(share, &header, datagram, port, out, results);
    fault = membership_fault(share, &header, port);
    if (fault != SA_ABSORBED) return fault;
    if (share->apart)
        return share->partial ? accept_partly(share, &header, datagram, out, header_only, results)
                              : accept_at_leaf(share, &header, datagram, out, results);

    uint32_t slot = header.slot - share->first_slot, version = header.kind & SA_VERSION ? 1 : 0;
    struct sa_registers *registers = &share->registers[2 * slot + version];
    uint32_t *sums = share->sums + (slot + version * share->slots) * share->stride;
    const uint8_t *values = datagram + SA_HEADER_BYTES;
    struct sa_decision decision =
        sa_slot_accept(&registers->held, &registers->seen, &registers->marked, share->full, two_windows_of(share, &header),
                       header.kind, header.chunk, header.rank);
    combine(decision.values, sums, values, share->values);
    if (decision.outcome != SA_BROADCAST && decision.outcome != SA_REPLY) return decision.outcome;
    results->size = SA_HEADER_BYTES + 4 * share->elements;
    results->header_only = (struct sa_targets){NULL, 0};
    uint32_t rank = header.rank & SA_RANK_BITS;
    results->valued = (struct sa_targets){&share->ports[rank], 1};
    if (routed)
        address(share, header.kind, rank, header.elements != 0, decision.outcome, results);
    else if (decision.outcome == SA_BROADCAST)
        results->valued = (struct sa_targets){share->ports, share->ranks};
    if (results->valued.count) {
        result_header(datagram, share->elements, registers->marked, out);
        emit(sums, out + SA_HEADER_BYTES, share->values);
    }
    if (results->header_only.count) result_header(datagram, 0, registers->marked, header_only);
    return decision.outcome;
}

/* Apart, so that packets with route ALL pay nothing for the others. */
__attribute__((noinline)) static enum sa_outcome accept_routed(struct sa_plane *plane, const uint8_t *datagram,
                                                               uint32_t size, uint32_t port, uint8_t *out,
                                                               uint8_t *header_only, struct sa_results *results) {
    return accept_one(true, plane, datagram, size, port, out, header_only, results);
}

enum sa_outcome sa_plane_accept(struct sa_plane *plane, const uint8_t *datagram, uint32_t size, uint32_t port,
                                uint8_t *out, uint8_t *header_only, struct sa_results *results) {
    enum sa_outcome outcome = SA_DROP_SHORT;
    if (size >= SA_HEADER_BYTES)
        outcome = datagram[2] & SA_ROUTE_BITS >> 8 ? accept_routed(plane, datagram, size, port, out, header_only, results)
                                                   : accept_one(false, plane, datagram, size, port, out, header_only, results);
    plane->counters[outcome]++;
    return outcome;
}

/* Ports are a share's own: the same ones are of the same job. */
static bool same_targets(const struct sa_targets *targets, const struct sa_targets *other) {
    return targets->ports == other->ports && targets->count == other->count;
}

static const struct share *share_of(const struct sa_plane *plane, const uint8_t *datagram) {
    struct sa_header header;
    memcpy(&header, datagram, sizeof header);
    return plane->by_id[SA_BE16(header.job)];
}

static struct sa_ranks ranks_of(const struct share *share, const struct sa_targets *targets) {
    struct sa_ranks ranks = {targets->count ? (uint32_t)(targets->ports - share->ports) : 0, targets->count};
    return ranks;
}

uint32_t sa_plane_process(struct sa_plane *plane, const uint8_t *bundle, uint32_t rows, uint32_t size, uint32_t port,
                          uint8_t *out, uint8_t *header_only, struct sa_run *runs) {
    struct sa_results last = {.size = 0};
    uint32_t count = 0;
    for (uint32_t row = 0; row < rows; row++) {
        struct sa_results results;
        const uint8_t *datagram = bundle + (uint64_t)row * size;
        enum sa_outcome outcome = sa_plane_accept(plane, datagram, size, port, out, header_only, &results);
        if (!sa_sends(outcome)) continue;
        if (results.valued.count) out += results.size;
        if (results.header_only.count) header_only += SA_HEADER_BYTES;
        if (!same_targets(&results.valued, &last.valued) || !same_targets(&results.header_only, &last.header_only)) {
            const struct share *share = share_of(plane, datagram);
            last = results;
            runs[count++] = (struct sa_run){.size = results.size,
                                            .job_id = share->job_id,
                                            .valued = ranks_of(share, &results.valued),
                                            .header_only = ranks_of(share, &results.header_only)};
        }
        runs[count - 1].count++;
    }
    return count;
}

/* ---- jobs */

struct sa_plane *sa_plane_new(void) { return calloc(1, sizeof(struct sa_plane)); }

static void share_free(struct share *share) {
    if (!share) return;
    free(share->memory);
    free(share);
}

void sa_plane_free(struct sa_plane *plane) {
    if (!plane) return;
    while (plane->first) sa_plane_evict(plane, plane->first->job_id);
    free(plane);
}

static uintptr_t in_lines(uintptr_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

/* A share with its registers as S7 initialises them; NULL: no memory. */
static struct share *share_new(const struct sa_job *job, const uint32_t *ports, uint32_t ranks,
                               const struct sa_parent *parent) {
    struct share *share = calloc(1, sizeof *share);
    if (!share) return NULL;
    uint32_t first = UINT32_MAX, end = 0;
    for (uint32_t s = 0; s < job->stream_count; s++) {
        const struct sa_stream *stream = &job->streams[s];
        if (stream->first_slot < first) first = stream->first_slot;
        if (stream->first_slot + stream->window > end) end = stream->first_slot + stream->window;
    }
    size_t versions = 2 * (size_t)(end - first), register_bytes = in_lines(versions * sizeof(struct sa_registers));
    share->slots = end - first;
    share->stride = in_lines(4 * (size_t)job->elements) / 4;
    share->job_id = job->job_id;
    share->generation = job->generation;
    share->ranks = ranks;
    share->elements = share->values = job->elements;
    share->stream_count = job->stream_count;
    share->first_slot = first;
    share->full = UINT64_MAX >> (SA_WORKERS_MAX - ranks);
    uint64_t sums_end = register_bytes + versions * 4 * share->stride;
    share->partial = job->partial;
    share->backups = job->backups;
    share->flags = job->partial ? SA_MARKED | SA_CLOSE : SA_MARKED;
    share->register_bytes = sums_end + (parent || job->partial ? versions * sizeof *share->apart : 0);
    memcpy(share->ports, ports, ranks * sizeof *ports);
    memcpy(share->ports + ranks, ports, ranks * sizeof *ports);
    if (parent) {
        share->ports[ranks] = parent->port; /* nothing there has a route */
        share->parent_rank = parent->rank;
    }
    memcpy(share->streams, job->streams, job->stream_count * sizeof *job->streams);
    share->memory = calloc(1, share->register_bytes + LINE_BYTES); /* pages that no packet touches cost nothing */
    if (!share->memory) {
        free(share);
        return NULL;
    }
    share->registers = (struct sa_registers *)in_lines((uintptr_t)share->memory);
    share->sums = (uint32_t *)((uint8_t *)share->registers + register_bytes);
    if (parent || job->partial) share->apart = (uint64_t *)((uint8_t *)share->registers + sums_end);
    for (uint32_t s = 0; s < job->stream_count; s++) {
        const struct sa_stream *stream = &job->streams[s];
        for (uint32_t i = 0; i < 2 * stream->window; i++)
            share->registers[2 * (stream->first_slot - first) + i].held =
                sa_first_held(i / 2, i % 2, stream->window);
    }
    return share;
}

int sa_plane_admit(struct sa_plane *plane, const struct sa_job *job, const uint32_t *ports, uint32_t ranks,
                   const struct sa_parent *parent) {
    struct share *share = share_new(job, ports, ranks, parent);
    if (!share) return -1;
    if (plane->size_only) share->values = 0;
    sa_plane_evict(plane, job->job_id); /* its earlier generation */
    share->next = plane->first;
    plane->first = share;
    plane->by_id[job->job_id] = share;
    return 0;
}

void sa_plane_evict(struct sa_plane *plane, uint32_t job_id) {
    if (job_id >= JOB_IDS || !plane->by_id[job_id]) return;
    struct share *share = plane->by_id[job_id];
    struct share **link = &plane->first;
    while (*link != share) link = &(*link)->next;
    *link = share->next;
    plane->by_id[job_id] = NULL;
    share_free(share);
}

void sa_plane_leave_values(struct sa_plane *plane) {
    plane->size_only = true;
    for (struct share *share = plane->first; share; share = share->next) share->values = 0;
}

int sa_plane_seen(const struct sa_plane *plane, uint32_t slot, uint32_t version, uint32_t *chunk, uint64_t *ranks) {
    for (const struct share *share = plane->first; share; share = share->next)
        for (uint32_t s = 0; s < share->stream_count; s++)
            if (slot - share->streams[s].first_slot < share->streams[s].window) {
                const struct sa_registers *registers = &share->registers[2 * (slot - share->first_slot) + (version & 1)];
                *chunk = registers->held;
                *ranks = registers->seen;
                return 0;
            }
    return -1;
}

uint8_t *sa_plane_registers(struct sa_plane *plane, uint32_t job_id, uint64_t *size_bytes) {
    struct share *share = job_id < JOB_IDS ? plane->by_id[job_id] : NULL;
    if (!share) return NULL;
    *size_bytes = share->register_bytes;
    return (uint8_t *)share->registers;
}

const uint64_t *sa_plane_counters(const struct sa_plane *plane) { return plane->counters; }
