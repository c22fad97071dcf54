#define _GNU_SOURCE
#include "transport/native/rdma/rdma_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define BUNDLE_BYTES 65000u  /* of UDP payload: an IPv4 datagram's limit, less headers */
#define RECEIVE_MESSAGES 8u  /* of 64 kB each where GRO is on: together they fit the second-level cache */
#define PLAIN_MESSAGES 64u
#define BACKOFF_NS 1000000
#define ECN_CAPABLE 2 /* ECT(0) */
#define CONGESTION_EXPERIENCED 3u
#define SMALL_IDENT 64u
#define PARTITION_MEMBER 0x7fffu /* without the bit for full membership */

int sa_rdma_wire_init(struct sa_rdma_wire *wire, const struct sa_rdma_options *options) {
    struct sa_udp_options udp = {
        .descriptor = options->descriptor,
        .gso = options->gso,
        .gro = options->gro,
        .segments_max = options->segments_max,
        .receive_messages = options->gro ? RECEIVE_MESSAGES : PLAIN_MESSAGES,
        .receive_bytes = SA_ROCE_PACKET_MAX + 1,
    };
    *wire = (struct sa_rdma_wire){.options = *options, .gso = options->gso && options->segments_max > 1};
    wire->pieces = calloc((size_t)3 * SA_BUNDLE_PACKETS, sizeof *wire->pieces);
    if (!wire->pieces) return -ENOMEM;
    wire->udp = sa_udp_new(&udp);
    if (wire->udp) return 0;
    int error = errno ? errno : ENOMEM;
    free(wire->pieces);
    return -error;
}

void sa_rdma_wire_clear(struct sa_rdma_wire *wire) {
    sa_udp_free(wire->udp);
    free(wire->pieces);
}

int sa_rdma_wire_connect(const struct sa_rdma_wire *wire, struct sa_rdma_port *port, const struct sa_address *peer,
                         uint32_t dscp) {
    const struct sa_address *local = &wire->options.local;
    if (peer->family != local->family || !peer->port || dscp > 63) return -EINVAL;
    memset(&port->name, 0, sizeof port->name);
    if (peer->family == AF_INET6) {
        port->name.v6.sin6_family = AF_INET6;
        port->name.v6.sin6_port = htons(peer->port);
        port->name.v6.sin6_scope_id = peer->scope;
        memcpy(&port->name.v6.sin6_addr, peer->host, 16);
        port->name_bytes = sizeof port->name.v6;
    } else {
        port->name.v4.sin_family = AF_INET;
        port->name.v4.sin_port = htons(peer->port);
        memcpy(&port->name.v4.sin_addr, peer->host, 4);
        port->name_bytes = sizeof port->name.v4;
    }
    port->peer = *peer;
    port->tos = (int)(dscp << 2) | ECN_CAPABLE;
    sa_roce_path_init(&port->out, local->family, local->host, peer->host, local->port, peer->port);
    sa_roce_path_init(&port->in, local->family, peer->host, local->host, peer->port, local->port);
    port->in_port = peer->port;
    port->small_only = false;
    port->small_in_row = 0;
    return 0;
}

/* ---- sending */

/* Headers, payload, then pad and ICRC with the identification that the packet's place in the bundle gives it. */
static uint32_t lay_out(struct sa_rdma_wire *wire, const struct sa_rdma_port *port, uint32_t count, uint32_t *bytes) {
    uint32_t pieces = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct sa_qp_packet *packet = &wire->packets[i];
        uint8_t *trailer = wire->trailers[i];
        uint32_t icrc = sa_roce_icrc_padded(&port->out, (uint16_t)i, packet->headers, packet->headers_bytes,
                                            packet->payload, packet->payload_bytes, packet->pad);
        memset(trailer, 0, packet->pad);
        sa_roce_put_icrc(trailer + packet->pad, icrc);
        wire->pieces[pieces++] = (struct iovec){(void *)(uintptr_t)packet->headers, packet->headers_bytes};
        if (packet->payload_bytes)
            wire->pieces[pieces++] = (struct iovec){(void *)(uintptr_t)packet->payload, packet->payload_bytes};
        wire->pieces[pieces++] = (struct iovec){trailer, packet->pad + SA_ROCE_ICRC_BYTES};
        *bytes += sa_qp_packet_bytes(packet);
    }
    return pieces;
}

union send_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(uint16_t)) + CMSG_SPACE(sizeof(int))];
};

static size_t control_of(union send_control *control, const struct sa_rdma_port *port, uint32_t segment) {
    size_t used = 0;
    if (segment) {
        uint16_t size = (uint16_t)segment;
        struct cmsghdr *header = (struct cmsghdr *)control->bytes;
        *header = (struct cmsghdr){.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof size)};
        memcpy(CMSG_DATA(header), &size, sizeof size);
        used = CMSG_SPACE(sizeof size);
    }
    bool v6 = port->peer.family == AF_INET6;
    struct cmsghdr *header = (struct cmsghdr *)(control->bytes + used);
    *header = (struct cmsghdr){.cmsg_level = v6 ? IPPROTO_IPV6 : IPPROTO_IP,
                               .cmsg_type = v6 ? IPV6_TCLASS : IP_TOS,
                               .cmsg_len = CMSG_LEN(sizeof port->tos)};
    memcpy(CMSG_DATA(header), &port->tos, sizeof port->tos);
    return used + CMSG_SPACE(sizeof port->tos);
}

static bool refuses_gso(int error) {
    return error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP || error == ENOPROTOOPT;
}

/* The first `count` of wire->packets in one send. 0, or the errno. */
static int send_packets(struct sa_rdma_wire *wire, struct sa_rdma_port *port, uint32_t count, uint32_t *bytes) {
    union send_control control;
    struct msghdr message = {.msg_name = &port->name, .msg_namelen = port->name_bytes, .msg_iov = wire->pieces};
    message.msg_iovlen = lay_out(wire, port, count, bytes);
    message.msg_control = control.bytes;
    message.msg_controllen = control_of(&control, port, count > 1 ? sa_qp_packet_bytes(&wire->packets[0]) : 0);
    ssize_t sent_bytes;
    do sent_bytes = sendmsg(wire->options.descriptor, &message, MSG_DONTWAIT);
    while (sent_bytes < 0 && errno == EINTR);
    int error = sent_bytes < 0 ? errno : 0;
    if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) {
        wire->counters[SA_RDMA_SEND_WOULD_BLOCK]++;
        wire->full = true;
        if (error == ENOBUFS) wire->full_until_ns = sa_now_ns() + BACKOFF_NS;
        return EAGAIN;
    }
    if (!error) {
        wire->counters[SA_RDMA_SENT_BUNDLES]++;
        wire->counters[SA_RDMA_SENT_PACKETS] += count;
        wire->counters[SA_RDMA_SENT_BYTES] += *bytes;
    }
    return error;
}

static void refused(struct sa_rdma_wire *wire, uint32_t count, int error) {
    wire->counters[SA_RDMA_SEND_ERRORS] += count;
    wire->send_errno = error;
}

bool sa_rdma_wire_send(struct sa_rdma_wire *wire, struct sa_rdma_port *port, int64_t now_ns) {
    uint32_t most = wire->gso ? wire->options.segments_max : 1, bytes = 0;
    uint32_t count = sa_qp_peek(&port->qp, now_ns, most, BUNDLE_BYTES, wire->packets);
    if (!count) return false;
    int error = send_packets(wire, port, count, &bytes);
    if (error == EAGAIN) return false;
    if (count > 1 && refuses_gso(error)) { /* was it segmentation, or this destination? A single packet shows which. */
        int alone = send_packets(wire, port, 1, &bytes);
        if (alone == EAGAIN) return false;
        if (!alone) {
            wire->gso = false;
            wire->counters[SA_RDMA_GSO_FALLBACKS]++;
            count = 1;
        }
        error = alone;
    }
    if (error) refused(wire, count, error);
    sa_qp_sent(&port->qp, count, bytes, now_ns);
    return true;
}

bool sa_rdma_wire_answer(struct sa_rdma_wire *wire, struct sa_rdma_port *port) {
    uint32_t bytes, answers = sa_qp_answer(&port->qp, &wire->packets[0]);
    if (!answers) return false;
    int error = send_packets(wire, port, 1, &bytes);
    if (error == EAGAIN) {
        port->qp.answers |= answers;
        return false;
    }
    if (error) refused(wire, 1, error);
    return true;
}

/* ---- receiving */

static bool same_host(const struct sa_address *a, const struct sa_address *b) {
    return a->family == b->family && a->scope == b->scope && !memcmp(a->host, b->host, sizeof a->host);
}

/* See rdma.h on identifications. */
static bool is_intact(struct sa_rdma_port *port, uint16_t from_port, const uint8_t *bytes, uint32_t size,
                      uint16_t expected) {
    uint16_t identification;
    if (from_port != port->in_port) {
        const uint8_t *ends = port->in.masked + 8 + (port->in.v6 ? 8 : 12);
        uint32_t host = port->in.v6 ? 16 : 4;
        uint8_t from[16], to[16];
        memcpy(from, ends, host);
        memcpy(to, ends + host, host);
        const uint8_t *ports = ends + (size_t)2 * host;
        sa_roce_path_init(&port->in, port->peer.family, from, to, from_port, (uint16_t)(ports[2] << 8 | ports[3]));
        port->in_port = from_port;
    }
    if (!sa_roce_check(&port->in, bytes, size, expected, port->small_only ? SA_IDENT_SMALL : SA_IDENT_ANY, &identification))
        return false;
    port->small_in_row = identification < SMALL_IDENT ? port->small_in_row + !port->small_only : 0;
    if (port->small_in_row > SMALL_IDENT) port->small_only = true;
    return true;
}

static void take(struct sa_rdma_wire *wire, struct sa_rdma_port **ports, uint32_t ports_size, const uint8_t *bytes,
                 const struct sa_udp_arrival *arrival, uint32_t position, int64_t now_ns) {
    struct sa_roce_packet packet;
    enum sa_rdma_counter fault;
    struct sa_rdma_port *port = NULL;
    if (sa_roce_parse(bytes, arrival->size, &packet) != SA_ROCE_GOOD)
        fault = SA_RDMA_DROP_MALFORMED;
    else if (!(port = ports[packet.queue_pair & (ports_size - 1)]) || port->qp.number != packet.queue_pair)
        fault = SA_RDMA_DROP_QUEUE_PAIR;
    else if (!port->name_bytes || !same_host(arrival->sender, &port->peer))
        fault = SA_RDMA_DROP_UNKNOWN_SENDER;
    else if ((packet.partition & PARTITION_MEMBER) != PARTITION_MEMBER)
        fault = SA_RDMA_DROP_PARTITION;
    else if (!is_intact(port, arrival->sender->port, bytes, arrival->size, (uint16_t)position))
        fault = SA_RDMA_DROP_ICRC;
    else {
        sa_qp_receive(&port->qp, &packet, (arrival->tos & 3u) == CONGESTION_EXPERIENCED, now_ns);
        return;
    }
    wire->counters[fault]++;
}

int64_t sa_rdma_wire_receive(struct sa_rdma_wire *wire, struct sa_rdma_port **ports, uint32_t ports_size,
                              int64_t now_ns) {
    const struct sa_udp_arrival *arrivals;
    int count = sa_udp_receive(wire->udp, &arrivals);
    if (count < 0) return count;
    int64_t packets = 0;
    for (int i = 0; i < count; i++) {
        const struct sa_udp_arrival *arrival = &arrivals[i];
        bool rest = i && arrival->sender == arrivals[i - 1].sender; /* the shorter last packet of one bundle */
        uint32_t first = rest ? arrivals[i - 1].rows : 0;
        for (uint32_t row = 0; row < arrival->rows; row++)
            take(wire, ports, ports_size, arrival->bytes + (size_t)row * arrival->size, arrival, first + row, now_ns);
        packets += arrival->rows;
    }
    const uint64_t *udp = sa_udp_counters(wire->udp);
    wire->counters[SA_RDMA_RECEIVED_BUNDLES] = udp[SA_UDP_RECEIVED_BUNDLES];
    wire->counters[SA_RDMA_RECEIVED_PACKETS] = udp[SA_UDP_RECEIVED_DATAGRAMS];
    wire->counters[SA_RDMA_RECEIVE_OVERFLOW] = udp[SA_UDP_RECEIVE_OVERFLOW];
    return packets;
}
