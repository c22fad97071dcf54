/* RoCEv2 packets as in the payload of UDP port 4791: BTH, then RETH or AETH, ImmDt, payload, pad, ICRC (InfiniBand
   Architecture Specification, volume 1, chapter 9 and annex A17). The functions are pure: they have no socket and no
   clock, and allocate nothing.

   All lengths are checked: sa_roce_parse never reads beyond `size` bytes, and a packet it accepts has all the headers
   of its opcode. Numbers are in host byte order here, big-endian on the wire; only the ICRC is stored little-endian.

   The ICRC covers fields of the IP header that a UDP socket can't see or set. Linux treats them as follows, read in its
   source and seen on captures (6.18; lo, and veth with and without its segmentation offload):

   - Protocol, addresses, total length: known at both ends, as sockets are bound to one address. TOS, TTL and checksums are
     masked.
   - Don't-fragment, set with IP_MTU_DISCOVER = IP_PMTUDISC_PROBE: always on the wire, nothing is ever fragmented.
   - Identification. An unconnected UDP socket with don't-fragment set sends 0. (A connected one counts up from a random
     number: so ours is never connected.) A GSO send is given one identification, 0, and what cuts it into packets, the
     kernel or a NIC, counts up: packet i of a GSO send leaves with identification i. So the sender knows it, and computes
     the ICRC of packet i with identification i: what is on the wire is right, for any real RoCEv2 receiver too.
   - Across lo, and veth with its offloads, a GSO send arrives without ever being cut; a capture there shows one long
     frame, with several RoCE packets in it, which no tool dissects; after `ethtool -K DEVICE tx-udp-segmentation off` a
     capture shows packets as on a wire. GRO puts packets together again only while their identifications count up or
     stay the same.
   - A receiver behind a UDP socket sees neither. But the CRC is linear: (ICRC computed with an assumed identification) xor
     (ICRC received) is the contribution of the identification's difference alone, which can be divided by x^k to give
     that difference back. So sa_roce_check finds the identification (and don't-fragment) with which the packet is intact;
     there is none for most damaged packets, and SA_IDENT_SMALL or SA_IDENT_ANY selects which ones are accepted: damage goes
     undetected with probability 2^-26 or 2^-15, besides what UDP's own checksum finds, which Linux checks before us.
   - UDP checksums stay on: UDP_SEGMENT needs them, and the ICRC masks them.
   IPv6 has no identification. The header's flow label, traffic class and hop limit are masked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SA_ROCE_PARTITION 0xffffu /* the default P_Key */
#define SA_ROCE_BTH_BYTES 12u
#define SA_ROCE_RETH_BYTES 16u
#define SA_ROCE_AETH_BYTES 4u
#define SA_ROCE_IMMEDIATE_BYTES 4u
#define SA_ROCE_CNP_BYTES 16u /* reserved, after the BTH of a congestion notification */
#define SA_ROCE_ICRC_BYTES 4u
#define SA_ROCE_HEADERS_MAX 32u /* BTH, RETH, ImmDt */
#define SA_ROCE_MTU_MIN 256u    /* payload bytes of a packet; a power of two */
#define SA_ROCE_MTU_MAX 4096u
#define SA_ROCE_PACKET_MAX (SA_ROCE_HEADERS_MAX + SA_ROCE_MTU_MAX + SA_ROCE_ICRC_BYTES)
#define SA_ROCE_BITS24 0xffffffu

/* An opcode is a transport and an operation. RD and UD are unknown here; reads, atomics and other requests of RC are known
   to be answered (SA_ROCE_UNSUPPORTED). */
#define SA_ROCE_RC 0x00u
#define SA_ROCE_UC 0x20u
#define SA_ROCE_TRANSPORT 0xe0u /* mask */
#define SA_ROCE_CNP 0x81u       /* a whole opcode */

enum sa_roce_operation {
    SA_ROCE_SEND_FIRST,
    SA_ROCE_SEND_MIDDLE,
    SA_ROCE_SEND_LAST,
    SA_ROCE_SEND_LAST_IMMEDIATE,
    SA_ROCE_SEND_ONLY,
    SA_ROCE_SEND_ONLY_IMMEDIATE,
    SA_ROCE_WRITE_FIRST,
    SA_ROCE_WRITE_MIDDLE,
    SA_ROCE_WRITE_LAST,
    SA_ROCE_WRITE_LAST_IMMEDIATE,
    SA_ROCE_WRITE_ONLY,
    SA_ROCE_WRITE_ONLY_IMMEDIATE,
    /* RC only */
    SA_ROCE_READ = 0x0c,
    SA_ROCE_ACKNOWLEDGE = 0x11,
    SA_ROCE_COMPARE_SWAP = 0x13,
    SA_ROCE_FETCH_ADD,
    SA_ROCE_SEND_LAST_INVALIDATE = 0x16,
    SA_ROCE_SEND_ONLY_INVALIDATE,
    SA_ROCE_FLUSH = 0x1c,
    SA_ROCE_ATOMIC_WRITE
};

/* Where an operation's packet stands in its message, and what follows the BTH: flags of sa_roce_shape. */
enum sa_roce_shape {
    SA_ROCE_STARTS = 1,    /* FIRST, ONLY */
    SA_ROCE_ENDS = 2,      /* LAST, ONLY */
    SA_ROCE_WRITES = 4,    /* else it sends */
    SA_ROCE_RETH = 8,
    SA_ROCE_IMMEDIATE = 16,
    SA_ROCE_AETH = 32,
    SA_ROCE_NOTIFIES = 64, /* CNP */
    SA_ROCE_KNOWN = 128,
    SA_ROCE_UNSUPPORTED = 256 /* a request to be refused: all after its BTH is payload here */
};

/* The syndrome in the AETH of an acknowledgement: the two high bits of 7 choose the kind. */
#define SA_ROCE_SYNDROME_KIND 0x60u
#define SA_ROCE_ACK 0x00u             /* | credit count */
#define SA_ROCE_ACK_UNLIMITED 0x1fu   /* what we send: no end-to-end credit */
#define SA_ROCE_RNR_NAK 0x20u         /* | timer code */
#define SA_ROCE_NAK_SEQUENCE 0x60u
#define SA_ROCE_NAK_INVALID 0x61u
#define SA_ROCE_NAK_ACCESS 0x62u
#define SA_ROCE_NAK_OPERATION 0x63u

/* A packet's headers, and a pointer to its payload. */
struct sa_roce_packet {
    uint8_t opcode;
    uint8_t pad; /* 0 to 3 bytes after the payload */
    uint8_t syndrome;
    bool solicited;
    bool migration;
    bool fecn;
    bool becn;
    bool ack_request;
    uint16_t shape; /* enum sa_roce_shape; set by parsing, ignored by building */
    uint16_t partition;
    uint32_t queue_pair; /* destination, 24 bits */
    uint32_t psn;        /* 24 bits */
    uint32_t rkey;
    uint64_t address;
    uint32_t length; /* of the whole write */
    uint32_t immediate;
    uint32_t msn; /* 24 bits */
    uint32_t payload_bytes; /* without pad */
    const uint8_t *payload;
};

enum sa_roce_fault {
    SA_ROCE_GOOD,
    SA_ROCE_SHORT,   /* less than its headers and ICRC */
    SA_ROCE_VERSION, /* of the transport header, not 0 */
    SA_ROCE_OPCODE,  /* not supported */
    SA_ROCE_LENGTH,  /* not a multiple of 4, more than 4096 bytes of payload, or payload where none belongs */
    SA_ROCE_PAD      /* more than there is payload */
};

/* The flags of an opcode: enum sa_roce_shape, 0 for one that is not supported. */
uint32_t sa_roce_shape(uint32_t opcode);

/* Read the UDP payload of `size` bytes; the ICRC is checked by sa_roce_check. Anything may be in `bytes`. */
enum sa_roce_fault sa_roce_parse(const uint8_t *bytes, uint32_t size, struct sa_roce_packet *packet);

/* Write BTH and what belongs to the opcode; returns their length, at most SA_ROCE_HEADERS_MAX. Payload, pad (zeros) and
   ICRC follow. `pad` must be sa_roce_pad of payload_bytes. A CNP's 16 bytes are written as well. */
uint32_t sa_roce_build(const struct sa_roce_packet *packet, uint8_t *headers);

static inline uint32_t sa_roce_pad(uint32_t payload_bytes) { return (0u - payload_bytes) & 3u; }

/* ---- ICRC */

/* Source and destination of packets, as in their IP and UDP headers. Initialised by sa_roce_path_init. */
struct sa_roce_path {
    bool v6;
    uint8_t masked[56]; /* 8 bytes 0xff, IP header (20 or 40) and UDP header, mutable fields all ones */
};

/* family AF_INET or AF_INET6; hosts of 4 or 16 bytes; ports in host byte order. */
void sa_roce_path_init(struct sa_roce_path *path, int family, const uint8_t *from, const uint8_t *to,
                       uint16_t from_port, uint16_t to_port);

/* The ICRC of a packet in up to two pieces: headers (from the BTH on), then payload with pad; neither with the ICRC.
   headers_bytes is at least SA_ROCE_BTH_BYTES. payload may be NULL if payload_bytes is 0. identification: of the IPv4
   header; see above. Store it with sa_roce_put_icrc. */
uint32_t sa_roce_icrc(const struct sa_roce_path *path, uint16_t identification, const uint8_t *headers,
                      uint32_t headers_bytes, const uint8_t *payload, uint32_t payload_bytes);

/* As sa_roce_icrc, with up to 3 bytes of pad (zeros) that need not be in memory. */
uint32_t sa_roce_icrc_padded(const struct sa_roce_path *path, uint16_t identification, const uint8_t *headers,
                             uint32_t headers_bytes, const uint8_t *payload, uint32_t payload_bytes, uint32_t pad);

void sa_roce_put_icrc(uint8_t *at, uint32_t icrc);

/* Write the ICRC into the last four bytes of a whole packet of `size` bytes (BTH to ICRC). */
void sa_roce_seal(const struct sa_roce_path *path, uint16_t identification, uint8_t *bytes, uint32_t size);

enum sa_roce_ident {
    SA_IDENT_SMALL, /* below 64, with don't-fragment: a UDP socket of Linux, which sends at most 64 packets at once */
    SA_IDENT_ANY    /* any IPv4 identification, don't-fragment or not: any NIC */
};

/* Whether a packet of at least SA_ROCE_BTH_BYTES + 4 bytes, parsed or not, came over `path` undamaged. `expected` is
   the identification to try first (its place in a bundle); *found, unless NULL, is set to the true one of an intact
   IPv4 packet. Fast if the guess is right or the path is IPv6. */
bool sa_roce_check(const struct sa_roce_path *path, const uint8_t *bytes, uint32_t size, uint16_t expected,
                   enum sa_roce_ident believed, uint16_t *identification_out);

/* ---- arithmetic of packet sequence numbers, modulo 2^24 */

static inline uint32_t sa_psn_add(uint32_t psn, uint32_t packets) { return (psn + packets) & SA_ROCE_BITS24; }

/* How far `a` lies after `b`: -2^23 to 2^23 - 1. */
static inline int32_t sa_psn_distance(uint32_t a, uint32_t b) {
    uint32_t ahead = (a - b) & SA_ROCE_BITS24;
    return ahead < 1u << 23 ? (int32_t)ahead : (int32_t)ahead - (1 << 24);
}
