/* Bundles of datagrams over a non-blocking UDP socket that the caller opens and closes (transport/links/udp_link.py's
   UdpLink): UDP_SEGMENT, UDP_GRO, sendmmsg and recvmmsg, with UdpLink's error rules and counters.

   Guarantees: no function but sa_udp_wait sleeps, and none but sa_udp_new allocates. Datagrams are never resized; those
   accepted by one sa_udp_send leave in order. A datagram that the network refuses (no route, a peer's ICMP, interface
   down) is loss: accepted and counted. Only an invalid descriptor is an error, -errno. A single thread at a time may
   use a socket. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sa_udp;

/* Where a datagram goes to or came from. No padding and nothing unused but zeros: equal addresses have equal bytes. */
struct sa_address {
    uint16_t family; /* AF_INET or AF_INET6 */
    uint16_t port;   /* host byte order */
    uint32_t scope;  /* IPv6 link-local: the interface's index; else 0 */
    uint8_t host[16]; /* IPv4 uses 4 */
};
_Static_assert(sizeof(struct sa_address) == 24, "compared by bytes");

struct sa_udp_options {
    int32_t descriptor;
    uint32_t gso; /* whether the socket takes UDP_SEGMENT */
    uint32_t gro; /* whether UDP_GRO is on */
    uint32_t segments_max;     /* datagrams per GSO send, 1 to 64 */
    uint32_t receive_messages; /* system-call messages, of up to 64 kB where gro is on, that one receive takes at most */
    uint32_t receive_bytes;    /* largest datagram expected where gro is off; longer ones are truncated to it */
    uint32_t priority;         /* whether a message with a TOS of its own also sets SO_PRIORITY (Linux 6.14) */
    uint32_t credit_bytes;     /* most bytes in the kernel for which sa_udp_has_room is true; 0: no limit but the socket's */
    int64_t gso_retry_ns;      /* how long after a refusal GSO is tried again */
};

enum sa_udp_counter {
    SA_UDP_SENT_BUNDLES,
    SA_UDP_SENT_DATAGRAMS,
    SA_UDP_SENT_BYTES,
    SA_UDP_RECEIVED_BUNDLES,
    SA_UDP_RECEIVED_DATAGRAMS,
    SA_UDP_RECEIVED_BYTES,
    SA_UDP_RECEIVE_OVERFLOW, /* dropped by the kernel because the receive buffer was full; bundles where GRO is on */
    SA_UDP_RECEIVE_ERRORS,
    SA_UDP_SEND_ERRORS, /* datagrams */
    SA_UDP_SEND_WOULD_BLOCK,
    SA_UDP_GSO_FALLBACKS,
    SA_UDP_COUNTERS
};

#define SA_TOS_OF_SOCKET (-1)
#define SA_UDP_TRAILER_BYTES 8u

/* `rows` datagrams of `size` bytes for one peer: back to back at `bytes`, or, where bytes is NULL, each at
   frames[row]. Unless it is NULL, each row has its SA_UDP_TRAILER_BYTES of `trailers` behind it, in its datagram. */
struct sa_udp_message {
    const uint8_t *bytes;
    const uint8_t *const *frames;
    const uint8_t *trailers;
    uint32_t rows;
    uint32_t size; /* with a trailer at most SA_DATAGRAM_MAX */
    const struct sa_address *to;
    int32_t tos; /* 0 to 255, or SA_TOS_OF_SOCKET */
    uint32_t accepted; /* set by sa_udp_send: how many rows, from the first on, it took */
};

/* `rows` datagrams of `size` bytes each, back to back, from one peer, with one TOS or traffic class. */
struct sa_udp_arrival {
    uint8_t *bytes; /* which may be changed */
    uint32_t rows;
    uint32_t size;
    const struct sa_address *sender;
    uint32_t tos; /* its two low bits are ECN; 3 is "congestion experienced" */
    uint32_t unused;
};

/* Enables TOS and overflow counts on the socket. NULL: no memory, or no such socket (errno says which). */
struct sa_udp *sa_udp_new(const struct sa_udp_options *options);
void sa_udp_free(struct sa_udp *udp);

/* Send messages in order, several GSO sends per system call. Stops at the first datagram the socket has no room for:
   that message's `accepted` is below its rows, and that of the later ones is 0. Returns 0, or -errno. */
int sa_udp_send(struct sa_udp *udp, struct sa_udp_message *messages, uint32_t count);

/* Whether less than the credit is in the kernel, which counts memory, more than the bytes on the wire. A caller that
   checks before each bundle leaves at most the credit and one bundle in the queues below. */
bool sa_udp_has_room(const struct sa_udp *udp);
uint32_t sa_udp_credit_bytes(const struct sa_udp *udp);

/* Returns the socket's descriptor. */
int sa_udp_descriptor(const struct sa_udp *udp);

/* Receive what has arrived, at most `receive_messages`: *arrivals[0 .. return value), or -errno. Where GRO's last
   datagram is shorter it is an arrival of its own. Arrivals are valid until the next sa_udp_receive. */
int sa_udp_receive(struct sa_udp *udp, const struct sa_udp_arrival **arrivals);

enum sa_udp_wakeup { SA_WOKE_READABLE = 1, SA_WOKE_WRITABLE = 2, SA_WOKE_CALLED = 4 };

/* Sleep until something has arrived, there is room (if `writable`; 1 ms after ENOBUFS, when the socket polls writable
   although the device is full), the eventfd `wake` was written (it is read), or CLOCK_MONOTONIC is until_ns. Room is in
   the credit, too, if the kernel's send buffer is twice the credit. Returns the reasons as enum sa_udp_wakeup, 0 for
   the timeout, or -errno. */
int sa_udp_wait(struct sa_udp *udp, int wake, int64_t until_ns, bool writable);

int64_t sa_now_ns(void);

/* Returns SA_UDP_COUNTERS numbers, which are valid as long as `udp`. */
const uint64_t *sa_udp_counters(const struct sa_udp *udp);

struct sa_udp_state {
    uint32_t gso;              /* still in use */
    int32_t send_errno;        /* of the newest refused send, 0 if none; `refused` is its destination */
    int32_t receive_errno;     /* likewise */
    int32_t fallback_errno;    /* why GSO was last given up; the rows and size it was tried with */
    uint32_t fallback_rows;
    uint32_t fallback_size;
    struct sa_address refused; /* of send_errno */
    struct sa_address fallback;
};
const struct sa_udp_state *sa_udp_state(const struct sa_udp *udp);
