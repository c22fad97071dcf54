/* See udp.h. A system call per packet costs about 4 us, nearly all of it inside the kernel; UDP_SEGMENT and UDP_GRO
   move up to 64 packets per call. */
#define _GNU_SOURCE
#include "transport/native/network/udp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/rule/wire.h"

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

#define SENDS_MAX 32u    /* GSO sends per system call */
#define SEGMENTS_MAX 64u /* kernels before 6.9 refuse more in one send */
#define PIECES_MAX (2u * SEGMENTS_MAX) /* of one send: rows and their trailers */
#define RECEIVE_BYTES 65536u /* of one receive, if messages are as long as the last one: what is decided on stays in the cache */
#define ARENA_STRIDE_GRO (65536u + 320u) /* not a multiple of the page: headers of all messages would share cache sets */
#define SOCKET_PRIORITY_MAX 6
#define BACKOFF_NS 1000000
#define NS_PER_S 1000000000

union name {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

union send_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(uint16_t)) + 2 * CMSG_SPACE(sizeof(int))];
};

union receive_control { /* overflow count, GRO's segment size, TOS */
    struct cmsghdr align;
    char bytes[3 * CMSG_SPACE(sizeof(int))];
};

/* The rows that one message of a sendmmsg transports, and the sa_udp_message they are of. */
struct portion {
    uint32_t message;
    uint32_t rows;
};

struct sa_udp {
    struct sa_udp_options options;
    struct sa_udp_state state;
    uint64_t counters[SA_UDP_COUNTERS];
    uint32_t overflow_seen; /* the kernel's count since the socket was made, modulo 2^32 */
    bool backoff;
    int64_t gso_retry_ns; /* when segmentation, given up, is tried again; 0: it wasn't */
    /* sending */
    struct mmsghdr sends[SENDS_MAX];
    struct portion portions[SENDS_MAX];
    struct iovec pieces[SENDS_MAX * PIECES_MAX];
    union name to[SENDS_MAX];
    union send_control send_controls[SENDS_MAX];
    /* receiving */
    uint32_t newest_bytes; /* of the message received last */
    uint32_t stride;
    uint8_t *arena;
    struct mmsghdr *receives;
    struct iovec *buffers;
    union name *from;
    union receive_control *receive_controls;
    struct sa_address *senders;
    struct sa_udp_arrival *arrivals;
};

/* Addresses */

static socklen_t name_of(const struct sa_address *address, union name *name) {
    if (address->family == AF_INET6) {
        name->v6 = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons(address->port), .sin6_scope_id = address->scope};
        memcpy(&name->v6.sin6_addr, address->host, 16);
        return sizeof name->v6;
    }
    name->v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(address->port)};
    memcpy(&name->v4.sin_addr, address->host, 4);
    return sizeof name->v4;
}

static void address_of(const union name *name, struct sa_address *address) {
    memset(address, 0, sizeof *address);
    address->family = name->any.sa_family;
    if (name->any.sa_family == AF_INET6) {
        address->port = ntohs(name->v6.sin6_port);
        address->scope = name->v6.sin6_scope_id;
        memcpy(address->host, &name->v6.sin6_addr, 16);
    } else {
        address->port = ntohs(name->v4.sin_port);
        memcpy(address->host, &name->v4.sin_addr, 4);
    }
}

/* Set-up */

static void prepare_receives(struct sa_udp *udp) {
    for (uint32_t i = 0; i < udp->options.receive_messages; i++) {
        udp->buffers[i] = (struct iovec){udp->arena + (size_t)i * udp->stride,
                                        udp->options.gro ? 65536 : udp->options.receive_bytes};
        udp->receives[i].msg_hdr = (struct msghdr){.msg_name = &udp->from[i],
                                                   .msg_namelen = sizeof udp->from[i],
                                                   .msg_iov = &udp->buffers[i],
                                                   .msg_iovlen = 1,
                                                   .msg_control = &udp->receive_controls[i],
                                                   .msg_controllen = sizeof udp->receive_controls[i]};
    }
}

SA_EXPORT struct sa_udp *sa_udp_new(const struct sa_udp_options *options) {
    int on = 1, family = 0;
    socklen_t length = sizeof family;
    if (getsockopt(options->descriptor, SOL_SOCKET, SO_DOMAIN, &family, &length)) return NULL;
    if (setsockopt(options->descriptor, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on)) return NULL;
    if (family == AF_INET6)
        setsockopt(options->descriptor, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
    else
        setsockopt(options->descriptor, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    struct sa_udp *udp = calloc(1, sizeof *udp);
    if (!udp) return NULL;
    uint32_t messages = options->receive_messages;
    udp->options = *options;
    udp->state.gso = options->gso;
    udp->stride = options->gro ? ARENA_STRIDE_GRO : (options->receive_bytes + 127u) / 64u * 64u;
    udp->arena = malloc((size_t)messages * udp->stride);
    udp->receives = calloc(messages, sizeof *udp->receives);
    udp->buffers = calloc(messages, sizeof *udp->buffers);
    udp->from = calloc(messages, sizeof *udp->from);
    udp->receive_controls = calloc(messages, sizeof *udp->receive_controls);
    udp->senders = calloc(messages, sizeof *udp->senders);
    udp->arrivals = calloc((size_t)messages * 2, sizeof *udp->arrivals);
    if (!udp->arena || !udp->receives || !udp->buffers || !udp->from || !udp->receive_controls || !udp->senders ||
        !udp->arrivals) {
        sa_udp_free(udp);
        errno = ENOMEM;
        return NULL;
    }
    prepare_receives(udp);
    return udp;
}

SA_EXPORT void sa_udp_free(struct sa_udp *udp) {
    if (!udp) return;
    free(udp->arena);
    free(udp->receives);
    free(udp->buffers);
    free(udp->from);
    free(udp->receive_controls);
    free(udp->senders);
    free(udp->arrivals);
    free(udp);
}

SA_EXPORT const uint64_t *sa_udp_counters(const struct sa_udp *udp) { return udp->counters; }

SA_EXPORT const struct sa_udp_state *sa_udp_state(const struct sa_udp *udp) { return &udp->state; }

/* Sending */

static uint32_t datagram_bytes(const struct sa_udp_message *message) {
    return message->size + (message->trailers ? SA_UDP_TRAILER_BYTES : 0);
}

static uint32_t rows_together(const struct sa_udp *udp, uint32_t size) {
    if (!udp->state.gso || !size) return 1;
    uint32_t fit = SA_DATAGRAM_MAX / size;
    return fit < udp->options.segments_max ? fit : udp->options.segments_max;
}

/* Fill pieces with rows of a message; frames that lie back to back are one piece. Returns the number of pieces. */
static uint32_t gather(struct iovec *pieces, const struct sa_udp_message *message, uint32_t first, uint32_t rows) {
    for (uint32_t row = 0; message->trailers && row < rows; row++) {
        size_t at = first + row;
        const uint8_t *frame = message->bytes ? message->bytes + at * message->size : message->frames[at];
        pieces[2 * row] = (struct iovec){(void *)(uintptr_t)frame, message->size};
        pieces[2 * row + 1] = (struct iovec){(void *)(uintptr_t)(message->trailers + at * SA_UDP_TRAILER_BYTES),
                                             SA_UDP_TRAILER_BYTES};
    }
    if (message->trailers) return 2 * rows;
    if (message->bytes) {
        pieces[0] = (struct iovec){(void *)(uintptr_t)(message->bytes + (size_t)first * message->size),
                                   (size_t)rows * message->size};
        return 1;
    }
    uint32_t count = 0;
    for (uint32_t row = first; row < first + rows; row++) {
        uint8_t *frame = (uint8_t *)(uintptr_t)message->frames[row];
        if (count && (uint8_t *)pieces[count - 1].iov_base + pieces[count - 1].iov_len == frame)
            pieces[count - 1].iov_len += message->size;
        else
            pieces[count++] = (struct iovec){frame, message->size};
    }
    return count;
}

/* W10: the class of a TOS byte, as Linux counts, up to what needs no privilege. */
static int priority_of(int tos) {
    int precedence = tos >> 5;
    return precedence < SOCKET_PRIORITY_MAX ? precedence : SOCKET_PRIORITY_MAX;
}

/* Append an int; returns the bytes used from now on. */
static size_t add_control(union send_control *control, size_t used, int level, int type, int value) {
    struct cmsghdr *header = (struct cmsghdr *)(control->bytes + used);
    *header = (struct cmsghdr){.cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(sizeof value)};
    memcpy(CMSG_DATA(header), &value, sizeof value);
    return used + CMSG_SPACE(sizeof value);
}

static size_t control_of(const struct sa_udp *udp, union send_control *control, const struct sa_udp_message *message,
                         uint32_t rows) {
    size_t used = 0;
    if (rows > 1) {
        uint16_t segment = (uint16_t)datagram_bytes(message);
        struct cmsghdr *header = (struct cmsghdr *)control->bytes;
        *header = (struct cmsghdr){.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof segment)};
        memcpy(CMSG_DATA(header), &segment, sizeof segment);
        used = CMSG_SPACE(sizeof segment);
    }
    if (message->tos == SA_TOS_OF_SOCKET) return used;
    bool v6 = message->to->family == AF_INET6;
    used = add_control(control, used, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, message->tos);
    /* After the TOS, since that makes the kernel set a priority that ignores the class selectors. */
    if (udp->options.priority) used = add_control(control, used, SOL_SOCKET, SO_PRIORITY, priority_of(message->tos));
    return used;
}

/* Prepare rows of message `index`, from row `first` on, as entry `at` of the sendmmsg. */
static void prepare_send(struct sa_udp *udp, uint32_t at, const struct sa_udp_message *messages, uint32_t index,
                         uint32_t first, uint32_t rows) {
    const struct sa_udp_message *message = &messages[index];
    struct msghdr *header = &udp->sends[at].msg_hdr;
    struct iovec *pieces = &udp->pieces[at * PIECES_MAX];
    udp->portions[at] = (struct portion){index, rows};
    header->msg_name = &udp->to[at];
    header->msg_namelen = name_of(message->to, &udp->to[at]);
    header->msg_iov = pieces;
    header->msg_iovlen = gather(pieces, message, first, rows);
    header->msg_controllen = control_of(udp, &udp->send_controls[at], message, rows);
    header->msg_control = header->msg_controllen ? &udp->send_controls[at] : NULL;
    header->msg_flags = 0;
}

/* Prepare the next sends, from the first row not yet accepted; returns how many, at most SENDS_MAX. */
static uint32_t prepare_batch(struct sa_udp *udp, const struct sa_udp_message *messages, uint32_t from, uint32_t count) {
    uint32_t at = 0;
    for (uint32_t index = from; index < count && at < SENDS_MAX; index++) {
        uint32_t most = rows_together(udp, datagram_bytes(&messages[index]));
        for (uint32_t row = messages[index].accepted; row < messages[index].rows && at < SENDS_MAX;) {
            uint32_t left = messages[index].rows - row;
            uint32_t rows = left < most ? left : most;
            prepare_send(udp, at++, messages, index, row, rows);
            row += rows;
        }
    }
    return at;
}

static void count_sent(struct sa_udp *udp, const struct sa_udp_message *message, uint32_t rows) {
    udp->counters[SA_UDP_SENT_BUNDLES]++;
    udp->counters[SA_UDP_SENT_DATAGRAMS] += rows;
    udp->counters[SA_UDP_SENT_BYTES] += (uint64_t)rows * datagram_bytes(message);
}

/* EIO: the device can't checksum; EINVAL, EMSGSIZE: segment above the path's MTU, or checksums switched off. */
static bool refuses_gso(int error) {
    return error == EIO || error == EINVAL || error == EMSGSIZE || error == EOPNOTSUPP || error == ENOPROTOOPT;
}

static bool is_full(struct sa_udp *udp, int error) {
    if (error == ENOBUFS) udp->backoff = true; /* the socket polls writable although the device is full */
    return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS;
}

static bool is_fatal(int error) { return error == EBADF || error == ENOTSOCK || error == EFAULT; }

/* Another thread may read the state at any time: the errno is written last, after what belongs to it. */
static void publish(int32_t *field, int error) { __atomic_store_n(field, error, __ATOMIC_RELEASE); }

static int64_t lose(struct sa_udp *udp, const struct sa_udp_message *message, uint32_t rows, int error) {
    udp->counters[SA_UDP_SEND_ERRORS] += rows;
    udp->state.refused = *message->to;
    publish(&udp->state.send_errno, error);
    return rows;
}

/* Was segmentation refused, or this destination? Find out with one plain datagram. Returns as `refused`. */
static int64_t probe_gso(struct sa_udp *udp, const struct sa_udp_message *messages, uint32_t index, uint32_t rows,
                         int error) {
    const struct sa_udp_message *message = &messages[index];
    prepare_send(udp, 0, messages, index, message->accepted, 1);
    if (sendmsg(udp->options.descriptor, &udp->sends[0].msg_hdr, MSG_DONTWAIT) < 0) {
        int plain = errno;
        if (is_fatal(plain)) return -plain;
        return is_full(udp, plain) ? 0 : lose(udp, message, rows, plain);
    }
    count_sent(udp, message, 1);
    udp->counters[SA_UDP_GSO_FALLBACKS]++;
    udp->state.gso = 0;
    udp->gso_retry_ns = sa_now_ns() + udp->options.gso_retry_ns;
    udp->state.fallback_rows = rows;
    udp->state.fallback_size = datagram_bytes(message);
    udp->state.fallback = *message->to;
    publish(&udp->state.fallback_errno, error);
    return 1;
}

/* Rows to count as accepted after an error at the first prepared send; 0: full; -errno. */
static int64_t refused(struct sa_udp *udp, const struct sa_udp_message *messages, int error) {
    struct portion first = udp->portions[0];
    if (is_fatal(error)) return -error;
    if (is_full(udp, error)) return 0;
    if (first.rows > 1 && refuses_gso(error)) return probe_gso(udp, messages, first.message, first.rows, error);
    return lose(udp, &messages[first.message], first.rows, error);
}

SA_EXPORT int sa_udp_send(struct sa_udp *udp, struct sa_udp_message *messages, uint32_t count) {
    for (uint32_t index = 0; index < count; index++) messages[index].accepted = 0;
    udp->backoff = false;
    if (udp->gso_retry_ns && sa_now_ns() >= udp->gso_retry_ns) {
        udp->gso_retry_ns = 0;
        udp->state.gso = 1;
    }
    for (uint32_t from = 0; from < count;) {
        if (messages[from].accepted == messages[from].rows) {
            from++;
            continue;
        }
        uint32_t prepared = prepare_batch(udp, messages, from, count);
        int sent_messages = sendmmsg(udp->options.descriptor, udp->sends, prepared, MSG_DONTWAIT);
        if (sent_messages < 0 && errno == EINTR) continue;
        if (sent_messages <= 0) {
            uint32_t index = udp->portions[0].message;
            int64_t rows = refused(udp, messages, sent_messages ? errno : EAGAIN);
            if (rows < 0) return (int)rows;
            if (!rows) {
                udp->counters[SA_UDP_SEND_WOULD_BLOCK]++;
                return 0;
            }
            messages[index].accepted += (uint32_t)rows;
            continue;
        }
        for (int at = 0; at < sent_messages; at++) {
            struct sa_udp_message *message = &messages[udp->portions[at].message];
            message->accepted += udp->portions[at].rows;
            count_sent(udp, message, udp->portions[at].rows);
        }
    }
    return 0;
}

SA_EXPORT bool sa_udp_has_room(const struct sa_udp *udp) {
    int queued = 0;
    if (!udp->options.credit_bytes || ioctl(udp->options.descriptor, SIOCOUTQ, &queued)) return true;
    return (uint32_t)queued < udp->options.credit_bytes;
}

int sa_udp_descriptor(const struct sa_udp *udp) { return udp->options.descriptor; }

uint32_t sa_udp_credit_bytes(const struct sa_udp *udp) { return udp->options.credit_bytes; }

/* Receiving */

static uint32_t read_controls(struct sa_udp *udp, struct msghdr *header, uint32_t *segment) {
    uint32_t tos = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        int value = 0;
        size_t length = c->cmsg_len - CMSG_LEN(0);
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS && length == 1) {
            tos = *CMSG_DATA(c);
            continue;
        }
        if (length < sizeof value) continue;
        memcpy(&value, CMSG_DATA(c), sizeof value);
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
            *segment = (uint32_t)value;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            udp->counters[SA_UDP_RECEIVE_OVERFLOW] += (uint32_t)value - udp->overflow_seen;
            udp->overflow_seen = (uint32_t)value;
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
            tos = (uint32_t)value & 255u;
        }
    }
    return tos;
}

/* Record received message `at`; returns the number of arrivals it gave: 1, or 2 if its last datagram is shorter. */
static uint32_t take(struct sa_udp *udp, uint32_t at, struct sa_udp_arrival *arrivals) {
    struct mmsghdr *message = &udp->receives[at];
    uint32_t size = message->msg_len, segment = size;
    uint32_t tos = read_controls(udp, &message->msg_hdr, &segment);
    if (!segment || segment > size) segment = size;
    address_of(&udp->from[at], &udp->senders[at]);
    uint32_t rows = size ? size / segment : 1;
    uint32_t rest = size ? size % segment : 0;
    uint8_t *bytes = udp->arena + (size_t)at * udp->stride;
    arrivals[0] = (struct sa_udp_arrival){bytes, rows, segment, &udp->senders[at], tos, 0};
    if (rest) arrivals[1] = (struct sa_udp_arrival){bytes + (size - rest), 1, rest, &udp->senders[at], tos, 0};
    udp->counters[SA_UDP_RECEIVED_BUNDLES]++;
    udp->counters[SA_UDP_RECEIVED_DATAGRAMS] += rows + (rest != 0);
    udp->counters[SA_UDP_RECEIVED_BYTES] += size;
    udp->newest_bytes = size;
    message->msg_hdr.msg_namelen = sizeof udp->from[at];
    message->msg_hdr.msg_controllen = sizeof udp->receive_controls[at];
    return rest ? 2 : 1;
}

/* Messages of one receive. */
static uint32_t room_for(const struct sa_udp *udp) {
    uint32_t most = udp->options.receive_messages, fit = RECEIVE_BYTES / (udp->newest_bytes | 1u);
    return fit < 1 ? 1 : fit < most ? fit : most;
}

SA_EXPORT int sa_udp_receive(struct sa_udp *udp, const struct sa_udp_arrival **arrivals) {
    *arrivals = udp->arrivals;
    uint32_t errors = 0;
    for (;;) {
        int arrivals_count = recvmmsg(udp->options.descriptor, udp->receives, room_for(udp), MSG_DONTWAIT, NULL);
        if (arrivals_count >= 0) {
            uint32_t count = 0;
            for (int at = 0; at < arrivals_count; at++) count += take(udp, (uint32_t)at, &udp->arrivals[count]);
            return (int)count;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (is_fatal(errno)) return -errno;
        if (errno != EINTR) { /* a peer's ICMP refusal, an interface that went down: loss */
            udp->counters[SA_UDP_RECEIVE_ERRORS]++;
            udp->state.receive_errno = errno;
        }
        if (++errors >= udp->options.receive_messages) return 0;
    }
}

/* Waiting */

SA_EXPORT int64_t sa_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

SA_EXPORT int sa_udp_wait(struct sa_udp *udp, int wake, int64_t until_ns, bool writable) {
    bool backoff = writable && udp->backoff;
    short events = writable && !backoff ? POLLIN | POLLOUT : POLLIN;
    struct pollfd polled[2] = {{udp->options.descriptor, events, 0}, {wake, POLLIN, 0}};
    int64_t left_ns = until_ns - sa_now_ns();
    if (backoff && left_ns > BACKOFF_NS) left_ns = BACKOFF_NS;
    if (left_ns < 0) left_ns = 0;
    struct timespec timeout = {(time_t)(left_ns / NS_PER_S), (long)(left_ns % NS_PER_S)};
    int ready = ppoll(polled, 2, &timeout, NULL);
    if (ready < 0) return errno == EINTR ? SA_WOKE_CALLED : -errno;
    if ((polled[0].revents | polled[1].revents) & POLLNVAL) return -EBADF;
    int reasons = backoff ? SA_WOKE_WRITABLE : 0;
    if (polled[0].revents & (POLLIN | POLLERR | POLLHUP)) reasons |= SA_WOKE_READABLE;
    if (polled[0].revents & POLLOUT) reasons |= SA_WOKE_WRITABLE;
    if (polled[1].revents & POLLIN) {
        uint64_t times;
        if (read(wake, &times, sizeof times) < 0 && errno != EAGAIN) return -errno;
        reasons |= SA_WOKE_CALLED;
    }
    return reasons;
}
