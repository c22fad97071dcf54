/* A reliable responder keeps packets that overtake others. Sans-IO, as qp.h.

   Packets after a gap are kept until it is filled, and then taken in order. A path that reorders would have each gap
   NAKed, and each NAK have the peer send its window again: so a gap is NAKed only when it has lasted longer than
   packets were late before; at first, and on a path that keeps the order, at once. A packet that comes twice after it
   was NAKed was late, not lost. The packets that the peer sends again for one NAK fill other gaps as well: those get
   time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transport/native/roce/roce.h"

#ifndef SA_REORDER_PACKETS
#define SA_REORDER_PACKETS 256u       /* kept at most, and how far ahead; a power of two */
#define SA_REORDER_MOST_NS 8000000    /* a NAK is not delayed longer: well below a retransmission timer */
#define SA_REORDER_AGAIN_NS 1000000   /* for a gap that the latest NAK covers */
#endif
#define SA_REORDER_NONE INT64_MAX

struct sa_reorder {
    struct sa_roce_packet *held; /* by PSN mod SA_REORDER_PACKETS, shape 0: none; NULL until there was one */
    uint32_t count;
    uint32_t highest;   /* PSN of the furthest packet that came after the gap */
    uint32_t naked;     /* PSN of the gap that was NAKed last, */
    uint32_t covered;   /* and one beyond what will be sent again for it */
    bool suspects;      /* the NAK may have been one too many: `naked` coming twice will tell */
    int64_t naked_ns;   /* how long that gap lasted */
    int64_t late_ns;    /* gaps last up to so long though nothing is lost */
    int64_t gap_ns;     /* when the gap was seen, or the one before it filled; SA_REORDER_NONE: there is none */
    int64_t nak_ns;     /* when it is to be NAKed; SA_REORDER_NONE: it was, or there is none */
};

/* Nothing is held, nothing known; frees its memory. */
void sa_reorder_reset(struct sa_reorder *reorder);
/* A packet came `ahead` > 0 packets after `expected`; it is kept if there is room. */
void sa_reorder_gap(struct sa_reorder *reorder, const struct sa_roce_packet *packet, uint32_t expected, uint32_t ahead,
                    uint32_t mtu, int64_t now_ns);
/* The expected packet came. */
void sa_reorder_filled(struct sa_reorder *reorder, int64_t now_ns);
/* Takes the packet with this PSN if it is held; its payload stays until the next packet comes. If it isn't but others are,
   there is a gap. */
bool sa_reorder_next(struct sa_reorder *reorder, uint32_t expected, int64_t now_ns, struct sa_roce_packet *packet);
/* The gap at `expected` is NAKed now. */
void sa_reorder_naked(struct sa_reorder *reorder, uint32_t expected);
/* A packet came that had come before. */
void sa_reorder_repeated(struct sa_reorder *reorder, uint32_t psn);
