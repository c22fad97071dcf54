/* The switch rule of a job with partial sums applies Q1 to Q5 to the registers of one slot version. */
#pragma once

#include "switchagg/native/rule/slot.h"

/* A slot version. have: the ranks that are known to have the result of the chunk held (Q4). */
struct sa_partial {
    uint32_t *held;
    uint64_t *seen;
    uint32_t *marked;
    uint64_t *have;
    uint64_t full; /* the bitmap of all ranks; the bit behind them says that the chunk is finalised (Q2) */
    uint32_t least; /* ranks with which a chunk of route ALL is finalised */
};

/* An abstention, or a request to finalise (Q3, Q5). rank: the byte. */
SA_INLINE enum sa_outcome sa_partial_header_only(const struct sa_partial *slot, uint32_t chunk, uint32_t rank) {
    uint32_t distance = chunk - *slot->held;
    if (distance) return distance >= 1u << 31 ? SA_DROP_OLDER : SA_DROP_EARLY;
    int closes = (rank & SA_CLOSE) != 0, finalised = *slot->seen > slot->full;
    if (closes && *slot->seen && !finalised) {
        *slot->seen |= slot->full + 1;
        return SA_BROADCAST;
    }
    if (closes || !finalised) return closes && *slot->seen ? SA_DROP_LATE : SA_DROP_EARLY;
    uint64_t bit = 1ull << (rank & SA_RANK_BITS);
    *slot->seen |= bit;
    *slot->have |= bit;
    return SA_ABSTAINED;
}

/* A contribution, which may finalise the chunk; following: the ranks seen of the chunk one window later, as far as the slot's
   other version holds it.
   two_windows: of the stream. waiting: for SA_RESEND, the ranks that may lack the result of the chunk held. */
SA_INLINE struct sa_decision sa_partial_accept(const struct sa_partial *slot, uint64_t following, uint32_t two_windows,
                                               uint32_t kind, uint32_t chunk, uint32_t rank, uint64_t *waiting) {
    uint32_t distance = chunk - *slot->held;
    struct sa_decision decision = {sa_turn_fault(distance, two_windows), SA_KEEP};
    if (decision.outcome != SA_ABSORBED) return decision;
    uint64_t bit = 1ull << (rank & SA_RANK_BITS), finalised = slot->full + 1;
    if (distance && *slot->seen) {
        *waiting = slot->full & ~(following | *slot->have | bit);
        decision.outcome = *slot->seen > slot->full ? SA_RESEND : SA_DROP_EARLY;
        if (*waiting) return decision;
    }
    if (distance) *slot->have = 0;
    uint64_t before = distance ? 0 : *slot->seen, now = before | bit;
    *slot->held = chunk;
    *slot->seen = now;
    *slot->marked = (rank & SA_MARKED) | (distance ? 0 : *slot->marked);
    if (before > slot->full) {
        decision.outcome = before & bit || kind & SA_RETRANSMISSION ? SA_REPLY : SA_DROP_LATE;
        return decision;
    }
    uint64_t givers = sa_givers(kind, ~0ull);
    if (!(givers & bit))
        decision.values = before ? SA_KEEP : SA_ZERO;
    else if (!(before & givers))
        decision.values = SA_WRITE;
    else if (!(before & bit))
        decision.values = sa_op(kind) == SA_OP_MAX ? SA_MAXIMUM : SA_ADD;
    int all = sa_route(kind) == SA_ROUTE_ALL;
    if (now == slot->full || (all && ((uint32_t)__builtin_popcountll(now) >= slot->least || rank & SA_CLOSE))) {
        *slot->seen = now | finalised;
        decision.outcome = SA_BROADCAST;
    } else {
        decision.outcome = before & bit ? SA_DROP_DUPLICATE : SA_ABSORBED;
    }
    return decision;
}
