/* The switch rule: S2 to S5 and G3 on the registers of one slot version, each touched once, in the order
   held, seen, marked, sums, verdict. User space and XDP share this source; the caller guarantees that nothing else
   accesses the slot meanwhile. */
#pragma once

#include "switchagg/native/rule/wire.h"

/* The operation on the values of the packet (S4). */
enum sa_values { SA_KEEP, SA_WRITE, SA_ADD, SA_MAXIMUM, SA_ZERO };

struct sa_decision {
    enum sa_outcome outcome; /* SA_ABSORBED, SA_BROADCAST, SA_REPLY, SA_DROP_DUPLICATE, SA_DROP_OLDER or SA_DROP_EARLY */
    enum sa_values values;
};

/* Whether a chunk is the one held, or the next of the slot version, `two_windows` after it (S2); SA_ABSORBED if it
   is. distance: how far it is ahead of the one held, modulo 2^32. */
SA_INLINE enum sa_outcome sa_turn_fault(uint32_t distance, uint32_t two_windows) {
    if (!distance || distance == two_windows) return SA_ABSORBED;
    return distance >= 1u << 31 ? SA_DROP_OLDER : SA_DROP_EARLY;
}

/* held, seen, marked (0 or SA_MARKED): the registers. full: the bitmap of all ranks of the job. two_windows: of the
   stream. kind, chunk, rank: the packet's, checked (S1); rank has SA_MARKED, too. */
SA_INLINE struct sa_decision sa_slot_accept(uint32_t *held, uint64_t *seen, uint32_t *marked, uint64_t full,
                                            uint32_t two_windows, uint32_t kind, uint32_t chunk, uint32_t rank) {
    uint32_t distance = chunk - *held;
    struct sa_decision decision = {sa_turn_fault(distance, two_windows), SA_KEEP};
    if (decision.outcome != SA_ABSORBED) return decision;
    uint64_t bit = 1ull << (rank & SA_RANK_BITS);
    uint64_t before = distance ? 0 : *seen;
    uint64_t now = before | bit;
    *held = chunk;
    *seen = now;
    *marked = (rank & SA_MARKED) | (distance ? 0 : *marked);
    uint64_t givers = sa_givers(kind, ~0ull); /* others than the job's are never in `before` */
    if (!(givers & bit))
        decision.values = before ? SA_KEEP : SA_ZERO;
    else if (!(before & givers))
        decision.values = SA_WRITE;
    else if (!(before & bit))
        decision.values = sa_op(kind) == SA_OP_MAX ? SA_MAXIMUM : SA_ADD;
    if (now == full)
        decision.outcome = before & bit ? SA_REPLY : SA_BROADCAST;
    else
        decision.outcome = before & bit ? SA_DROP_DUPLICATE : SA_ABSORBED;
    return decision;
}

/* At a switch below another, a child's packet (H3, H4). full: the bitmap of all children; the bit behind them is the
   parent's, whose result is there. asked: a bitmap of children. Outcomes: also SA_UP, SA_UP_AGAIN, SA_DROP_ASKED. */
SA_INLINE struct sa_decision sa_leaf_accept(uint32_t *held, uint64_t *seen, uint32_t *marked, uint64_t *requesters,
                                            uint64_t full, uint32_t two_windows, uint32_t kind, uint32_t chunk,
                                            uint32_t rank) {
    struct sa_decision decision = sa_slot_accept(held, seen, marked, full, two_windows, kind, chunk, rank);
    uint64_t bit = 1ull << (rank & SA_RANK_BITS);
    if (decision.outcome == SA_BROADCAST) {
        decision.outcome = SA_UP;
        *requesters = 0;
    } else if (decision.outcome == SA_REPLY) { /* the parent's bit is not there yet */
        decision.outcome = *requesters && !(*requesters & bit) ? SA_DROP_ASKED : SA_UP_AGAIN;
        *requesters = decision.outcome == SA_UP_AGAIN ? bit : *requesters | bit;
    } else if (decision.outcome == SA_DROP_DUPLICATE && *seen > full) {
        decision.outcome = SA_REPLY;
    }
    return decision;
}

/* Does the same for the parent's result of a chunk (H5). */
SA_INLINE struct sa_decision sa_leaf_take(uint32_t held, uint64_t *seen, uint64_t full, uint32_t chunk) {
    struct sa_decision decision = {SA_DROP_PARENT_CHUNK, SA_KEEP};
    if (chunk != held) return decision;
    decision.outcome = *seen > full ? SA_DROP_PARENT_DUPLICATE : SA_DROP_PARENT_EARLY;
    if (*seen != full) return decision;
    *seen = full + (full + 1);
    return (struct sa_decision){SA_BROADCAST, SA_WRITE};
}

/* Returns the chunk number in `held` of an unused slot version: two windows before its first chunk (S7). */
SA_INLINE uint32_t sa_first_held(uint32_t offset, uint32_t version, uint32_t window) {
    return offset + (version - 2u) * window;
}

/* Applies S4 to one value. Unsigned: sums wrap modulo 2^32. */
SA_INLINE uint32_t sa_combine(enum sa_values action, uint32_t sum, uint32_t value) {
    if (action == SA_WRITE) return value;
    if (action == SA_ADD) return sum + value;
    if (action == SA_MAXIMUM) return (int32_t)value > (int32_t)sum ? value : sum;
    if (action == SA_ZERO) return 0;
    return sum;
}
