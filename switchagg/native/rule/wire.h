/* The packet layout follows rules P1 to P6. Compiled for user space and, by clang, for BPF. */
#pragma once

#ifdef __bpf__
#include <linux/types.h>
typedef __u8 uint8_t;
typedef __u16 uint16_t;
typedef __u32 uint32_t;
typedef __u64 uint64_t;
typedef __s32 int32_t;
typedef __s64 int64_t;
#else
#include <stdint.h>
#endif

#define SA_INLINE static inline __attribute__((always_inline, unused))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SA_BE16(x) __builtin_bswap16(x)
#define SA_BE32(x) __builtin_bswap32(x)
#else
#define SA_BE16(x) (x)
#define SA_BE32(x) (x)
#endif

#define SA_MAGIC 0x5341u
#define SA_WIRE_VERSION 2u
#define SA_HEADER_BYTES 20u
#define SA_ELEMENTS_MAX 16000u
#define SA_WORKERS_MAX 64u
#define SA_STREAMS_MAX 256u
#define SA_DATAGRAM_MAX 65507u

/* The flags are the lowest three bits of `kind`. */
#define SA_RESULT 1u
#define SA_VERSION 2u
#define SA_RETRANSMISSION 4u

/* The bits of the byte `rank`: the lower six are the rank. */
#define SA_RANK_BITS 63u
#define SA_CLOSE 64u
#define SA_MARKED 128u /* met congestion (G1) */

#define SA_OP_SUM 0u
#define SA_OP_MAX 1u

/* The route says which ranks give values for a chunk, and which get its result. A rank that gives none sends a header-only
   packet (P2). */
#define SA_ROUTE_ALL 0u        /* all give, all get */
#define SA_ROUTE_TO_OWNER 1u   /* all but the owner give, it alone gets their sum */
#define SA_ROUTE_FROM_OWNER 2u /* the owner alone gives, all others get */
#define SA_ROUTE_BITS 0x600u   /* of `kind`; all zero: ALL */

/* Multicast: results of a job go to 239.RANKS.JOB.JOB, all workers' or, with SA_GROUP_WITHOUT, those of all but one. */
#define SA_GROUP 239u
#define SA_GROUP_WITHOUT 128u

/* Fields are big-endian, as on the wire. Naturally aligned, so that no field needs packing. */
struct sa_header {
    uint32_t kind; /* magic, wire version, op, route, owner, flags */
    uint16_t job;
    uint16_t slot;
    uint32_t generation;
    uint8_t stream;
    uint8_t rank; /* and CLOSE, MARKED */
    uint16_t elements;
    uint32_t chunk;
};
_Static_assert(sizeof(struct sa_header) == SA_HEADER_BYTES, "a header has 20 bytes");

/* The outcome of a packet; each is a counter. */
enum sa_outcome {
    SA_ABSORBED,
    SA_BROADCAST,
    SA_REPLY,
    SA_DROP_DUPLICATE,
    SA_DROP_OLDER,
    SA_DROP_EARLY,
    SA_DROP_SHORT, /* P6, in the order of the checks */
    SA_DROP_MAGIC,
    SA_DROP_WIRE_VERSION,
    SA_DROP_OP,
    SA_DROP_FLAGS,
    SA_DROP_LENGTH,
    SA_DROP_RESULT, /* S1, in the order of the checks */
    SA_DROP_JOB,
    SA_DROP_GENERATION,
    SA_DROP_STREAM,
    SA_DROP_SLOT,
    SA_DROP_RANK,
    SA_DROP_PORT,
    SA_DROP_OWNER,
    SA_DROP_ELEMENTS,
    SA_UP, /* Outcomes of a switch below another (H2 to H5) */
    SA_UP_AGAIN,
    SA_DROP_ASKED,
    SA_DROP_PARENT_CHUNK,
    SA_DROP_PARENT_EARLY,
    SA_DROP_PARENT_DUPLICATE,
    SA_DROP_ROUTE,
    SA_RESEND, /* Outcomes of a job with partial sums (Q1 to Q5) */
    SA_ABSTAINED,
    SA_DROP_LATE,
    SA_OUTCOMES,
    SA_BASIC_OUTCOMES = SA_UP
};

/* Whether a packet with this outcome causes others. */
SA_INLINE int sa_sends(enum sa_outcome outcome) {
    return outcome == SA_BROADCAST || outcome == SA_REPLY || outcome == SA_UP || outcome == SA_UP_AGAIN ||
           outcome == SA_RESEND;
}

SA_INLINE uint32_t sa_kind(uint32_t op, uint32_t route, uint32_t owner, uint32_t flags) {
    return SA_MAGIC << 16 | SA_WIRE_VERSION << 12 | op << 11 | route << 9 | owner << 3 | flags;
}

SA_INLINE uint32_t sa_op(uint32_t kind) { return kind >> 11 & 1u; }
SA_INLINE uint32_t sa_route(uint32_t kind) { return kind >> 9 & 3u; }
SA_INLINE uint32_t sa_owner(uint32_t kind) { return kind >> 3 & 63u; }

/* Bitmap of the ranks that give values for a chunk (S4). everyone: that of all ranks of the job. */
SA_INLINE uint64_t sa_givers(uint32_t kind, uint64_t everyone) {
    if (sa_route(kind) == SA_ROUTE_ALL) return everyone;
    uint64_t owner = 1ull << sa_owner(kind);
    return sa_route(kind) == SA_ROUTE_FROM_OWNER ? owner : everyone & ~owner;
}

/* Whether the network marked a datagram with this TOS or traffic class: "congestion experienced". */
SA_INLINE int sa_is_ce(uint32_t tos) { return (tos & 3u) == 3u; }

/* Mark a datagram that came marked CE: a contribution's mark goes into its header (G2). Returns the TOS for its
   result. */
SA_INLINE uint32_t sa_mark_contribution(uint8_t *datagram, uint32_t size, uint32_t tos) {
    if (size < SA_HEADER_BYTES || datagram[3] & SA_RESULT) return tos;
    ((struct sa_header *)(void *)datagram)->rank |= SA_MARKED; /* one byte: at any alignment */
    return tos & ~1u;
}

/* Why a datagram of `size` >= SA_HEADER_BYTES bytes is no packet (P6); SA_ABSORBED if it is one. Fields are in host
   byte order. */
SA_INLINE enum sa_outcome sa_fault(uint32_t kind, uint32_t elements, uint32_t size) {
    if (kind >> 16 != SA_MAGIC) return SA_DROP_MAGIC;
    if ((kind >> 12 & 15u) != SA_WIRE_VERSION) return SA_DROP_WIRE_VERSION;
    if (sa_route(kind) == SA_ROUTE_ALL) {
        if (sa_owner(kind)) return SA_DROP_FLAGS;
        if (!elements) return SA_DROP_LENGTH;
    } else if (sa_route(kind) > SA_ROUTE_FROM_OWNER) {
        return SA_DROP_OP;
    }
    if (elements > SA_ELEMENTS_MAX || size != SA_HEADER_BYTES + 4 * elements) return SA_DROP_LENGTH;
    return SA_ABSORBED;
}
