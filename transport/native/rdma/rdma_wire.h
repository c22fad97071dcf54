/* The wire side of an RDMA endpoint: bundles of packets of queue pairs to the socket, and from the socket to them. */
#pragma once

#include <netinet/in.h>

#include "transport/native/rdma/rdma.h"

#define SA_BUNDLE_PACKETS 64u

/* A queue pair and the network path to its peer. */
struct sa_rdma_port {
    struct sa_qp qp;
    struct sa_address peer;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name; /* of the peer */
    socklen_t name_bytes;
    int tos;
    struct sa_roce_path out;
    struct sa_roce_path in;
    uint16_t in_port;      /* that `in` was made for; a peer may send from any */
    bool small_only;       /* accept only identifications below 64 (rdma.h) */
    uint32_t small_in_row;
};

struct sa_rdma_wire {
    struct sa_rdma_options options;
    struct sa_udp *udp; /* receives */
    uint64_t counters[SA_RDMA_COUNTERS];
    int32_t send_errno;
    bool gso;
    bool full;            /* the socket had no room */
    int64_t full_until_ns; /* the device had no room: the socket polls writable nevertheless */
    struct sa_qp_packet packets[SA_BUNDLE_PACKETS];
    struct iovec *pieces; /* 3 per packet */
    uint8_t trailers[SA_BUNDLE_PACKETS][8];
};

int sa_rdma_wire_init(struct sa_rdma_wire *wire, const struct sa_rdma_options *options);
void sa_rdma_wire_clear(struct sa_rdma_wire *wire);

/* Where a port sends to; DSCP 0 to 63. -EINVAL: not an address of the endpoint's family. */
int sa_rdma_wire_connect(const struct sa_rdma_wire *wire, struct sa_rdma_port *port, const struct sa_address *peer,
                         uint32_t dscp);

/* Send one bundle, or one acknowledgement. Returns whether anything left (or was refused permanently, which counts as
   lost). */
bool sa_rdma_wire_send(struct sa_rdma_wire *wire, struct sa_rdma_port *port, int64_t now_ns);
bool sa_rdma_wire_answer(struct sa_rdma_wire *wire, struct sa_rdma_port *port);

/* Gives what has arrived to the queue pairs among `ports` (at number mod ports_size, a power of two). Returns how many
   packets there were, or -errno. */
int64_t sa_rdma_wire_receive(struct sa_rdma_wire *wire, struct sa_rdma_port **ports, uint32_t ports_size, int64_t now_ns);
