/* A switch's turn on interfaces: packets from AF_PACKET sockets to an engine and from it to output queues and out, many
   a system call. host/queues.py says what the queues keep, software_switch.py what is counted. The host runs it in a single thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    ABI = 1,
    BATCH = 64,           /* packets of one port before the others have their turn */
    TAG = 4,              /* bytes of a VLAN tag */
    ETHERNET = 14,        /* bytes of the shortest packet that can be sent */
    BURST_US = 2000,      /* as in host/queues.py */
    AGAIN_US = 200,       /* sleep while an interface has no room */
    CAPTURE_BYTES = 1 << 18,
};

#define EVERY_TURNS 16 /* turns between two looks at the control socket */

/* As in p4vm.h; the engine comes with the program's library. */
struct output {
    uint32_t port, size;
    uint64_t at;
};

struct replica {
    uint32_t port, instance;
};

/* Field by field as `Calls` in host/native_host.py. */
struct calls {
    void *engine;
    void (*run)(void *engine, uint32_t count, const uint16_t *ports, const uint32_t *offsets, const uint8_t *data,
                uint64_t now_us, uint64_t *firsts);
    const struct output *(*outputs)(const void *engine);
    const uint8_t *(*data)(const void *engine);
    int (*set_replicas)(void *engine, int which, uint32_t id, uint32_t count, const struct replica *replicas,
                        uint32_t group, uint32_t truncate);
};

struct packet {
    uint8_t *data;
    uint32_t size;
};

/* A ring of `room` packets (a power of two), at most `depth` in use. */
struct queue {
    struct packet *packets;
    uint32_t room, first, count, depth, rate, reported_depth;
    double next_us;
};

struct capture {
    int fd;
    uint32_t used;
    uint8_t *bytes;
};

/* Field by field as `PortCounts` in host/software_switch.py. */
struct counters {
    uint64_t received, sent_packets, bundles, queue_full, not_sent;
};

struct port {
    int fd;
    uint32_t number, longest;
    struct queue queue;
    struct capture in, out;
    struct counters counters;
};

struct host {
    struct calls calls;
    uint32_t ports;
    struct port *port;
    struct pollfd *polled; /* ports, then the control socket */
    int16_t *index_of_port; /* number of a port -> index, -1: none */
    uint32_t frame;        /* longest packet that is taken */
    uint8_t *frames, *batch;
    uint64_t started_ns, no_port;
    int32_t capture_error;
    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    _Alignas(8) uint8_t ancillary[BATCH][64];
    uint16_t numbers[BATCH];
    uint32_t offsets[BATCH + 1];
    uint64_t firsts[BATCH + 1];
};

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double now_us(const struct host *host) { return (double)(clock_ns(CLOCK_MONOTONIC) - host->started_ns) / 1e3; }

/* ---- captures */

static void capture_flush(struct host *host, struct capture *capture) {
    uint32_t done = 0;
    while (capture->fd >= 0 && done < capture->used) {
        ssize_t written_bytes = write(capture->fd, capture->bytes + done, capture->used - done);
        if (written_bytes >= 0) {
            done += (uint32_t)written_bytes;
        } else if (errno != EINTR) {
            host->capture_error = errno; /* a full disk ends the captures, not the switch */
            capture->fd = -1;
        }
    }
    capture->used = 0;
}

static void capture_add(struct host *host, struct capture *capture, const uint8_t *data, uint32_t size) {
    if (capture->fd < 0) return;
    if (capture->used + 16 + size > CAPTURE_BYTES) capture_flush(host, capture);
    uint64_t time_us = clock_ns(CLOCK_REALTIME) / 1000;
    uint32_t record[4] = {(uint32_t)(time_us / 1000000), (uint32_t)(time_us % 1000000), size, size};
    memcpy(capture->bytes + capture->used, record, 16);
    memcpy(capture->bytes + capture->used + 16, data, size);
    capture->used += 16 + size;
}

/* ---- output queues */

/* 0: no memory. */
static int queue_grow(struct queue *queue) {
    uint32_t room = queue->room ? queue->room * 2 : BATCH;
    struct packet *packets = calloc(room, sizeof *packets);
    if (!packets) return 0;
    for (uint32_t i = 0; i < queue->count; i++)
        packets[i] = queue->packets[(queue->first + i) & (queue->room - 1)];
    free(queue->packets);
    queue->packets = packets, queue->room = room, queue->first = 0;
    return 1;
}

static uint32_t due(struct queue *queue, double now) {
    if (!queue->count || !queue->rate) return queue->count;
    if (queue->next_us < now - BURST_US) queue->next_us = now - BURST_US;
    if (now < queue->next_us) return 0;
    double allowed = (now - queue->next_us) * queue->rate / 1e6 + 1;
    return allowed < queue->count ? (uint32_t)allowed : queue->count;
}

static void drop_first(struct queue *queue) {
    free(queue->packets[queue->first].data);
    queue->first = (queue->first + 1) & (queue->room - 1);
    queue->count--;
}

/* Whether an interface had no room for all that may leave. */
static int send_due(struct host *host, struct port *port) {
    struct queue *queue = &port->queue;
    uint32_t left = due(queue, now_us(host)), departures = 0;
    int full = 0;
    while (left && !full) {
        uint32_t count = left < BATCH ? left : BATCH;
        for (uint32_t i = 0; i < count; i++) {
            struct packet *packet = &queue->packets[(queue->first + i) & (queue->room - 1)];
            host->vectors[i] = (struct iovec){packet->data, packet->size};
            host->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &host->vectors[i], .msg_iovlen = 1}};
        }
        int sent_count = sendmmsg(port->fd, host->messages, count, MSG_DONTWAIT);
        for (int i = 0; i < sent_count; i++) {
            capture_add(host, &port->out, queue->packets[queue->first].data, queue->packets[queue->first].size);
            drop_first(queue);
        }
        if (sent_count > 0) {
            port->counters.sent_packets += (uint32_t)sent_count, left -= (uint32_t)sent_count, departures += (uint32_t)sent_count;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
            full = 1;
        } else if (errno != EINTR) {
            port->counters.not_sent++, left--, departures++; /* the interface is down, or gone */
            drop_first(queue);
        }
    }
    if (queue->rate) queue->next_us += departures * 1e6 / queue->rate;
    return full;
}

static void put(struct host *host, uint32_t number, const uint8_t *data, uint32_t size) {
    int index = number <= UINT16_MAX ? host->index_of_port[number] : -1;
    if (index < 0) {
        host->no_port++;
        return;
    }
    struct port *port = &host->port[index];
    struct queue *queue = &port->queue;
    if (size > port->longest || size < ETHERNET) {
        port->counters.not_sent++;
        return;
    }
    if (queue->count >= queue->depth) send_due(host, port); /* packets of one batch come faster than any link */
    uint8_t *copy;
    if (queue->count >= queue->depth || (queue->count == queue->room && !queue_grow(queue)) || !(copy = malloc(size))) {
        port->counters.queue_full++;
        return;
    }
    memcpy(copy, data, size);
    queue->packets[(queue->first + queue->count++) & (queue->room - 1)] = (struct packet){copy, size};
}

/* ---- one port's packets */

/* Bytes that were taken out of the packet as its VLAN tag: 4 or 0. They are written into `tag`. */
static uint32_t tag_of(struct msghdr *header, uint8_t *tag) {
    for (struct cmsghdr *item = CMSG_FIRSTHDR(header); item; item = CMSG_NXTHDR(header, item)) {
        if (item->cmsg_level != SOL_PACKET || item->cmsg_type != PACKET_AUXDATA) continue;
        struct tpacket_auxdata about;
        memcpy(&about, CMSG_DATA(item), sizeof about);
        if (!(about.tp_status & TP_STATUS_VLAN_VALID)) return 0;
        uint16_t type = about.tp_status & TP_STATUS_VLAN_TPID_VALID ? about.tp_vlan_tpid : 0x8100;
        tag[0] = type >> 8, tag[1] = type & 0xff, tag[2] = about.tp_vlan_tci >> 8, tag[3] = about.tp_vlan_tci & 0xff;
        return TAG;
    }
    return 0;
}

/* Packets received, to `batch` one after the other. */
static uint32_t receive(struct host *host, struct port *port) {
    for (int i = 0; i < BATCH; i++) {
        host->vectors[i] = (struct iovec){host->frames + (size_t)i * host->frame, host->frame};
        host->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &host->vectors[i],
                                                         .msg_iovlen = 1,
                                                         .msg_control = host->ancillary[i],
                                                         .msg_controllen = sizeof host->ancillary[i]}};
    }
    int count = recvmmsg(port->fd, host->messages, BATCH, MSG_DONTWAIT, NULL);
    uint32_t at = 0, packets = 0;
    for (int i = 0; i < count; i++) {
        uint32_t size = host->messages[i].msg_len;
        const uint8_t *data = host->vectors[i].iov_base;
        uint8_t tag[TAG];
        uint32_t tagged = size >= 12 ? tag_of(&host->messages[i].msg_hdr, tag) : 0;
        uint32_t head = tagged ? 12 : 0;
        memcpy(host->batch + at, data, head);
        memcpy(host->batch + at + head, tag, tagged);
        memcpy(host->batch + at + head + tagged, data + head, size - head);
        size += tagged;
        host->numbers[packets] = (uint16_t)port->number;
        host->offsets[packets++] = at;
        port->counters.bundles += size > port->longest;
        capture_add(host, &port->in, host->batch + at, size);
        at += size;
    }
    host->offsets[packets] = at;
    port->counters.received += packets;
    return packets;
}

static void tell_depths(struct host *host) {
    for (uint32_t i = 0; i < host->ports; i++) {
        struct queue *queue = &host->port[i].queue;
        if (queue->reported_depth == queue->count) continue;
        struct replica depth = {queue->count, 0};
        if (!host->calls.set_replicas(host->calls.engine, 2, host->port[i].number, 1, &depth, 0, 0))
            queue->reported_depth = queue->count;
    }
}

static void take(struct host *host, struct port *port) {
    uint32_t count = receive(host, port);
    if (!count) return;
    tell_depths(host);
    host->calls.run(host->calls.engine, count, host->numbers, host->offsets, host->batch, (uint64_t)now_us(host),
                    host->firsts);
    const struct output *outputs = host->calls.outputs(host->calls.engine);
    const uint8_t *data = host->calls.data(host->calls.engine);
    for (uint64_t i = 0; i < host->firsts[count]; i++) put(host, outputs[i].port, data + outputs[i].at, outputs[i].size);
}

/* ---- the loop */

/* ms until something may leave that waits, at most `most`. */
static int sleep_ms(struct host *host, int full, double most_us) {
    double now = now_us(host), least = most_us;
    for (uint32_t i = 0; i < host->ports; i++) {
        struct queue *queue = &host->port[i].queue;
        if (!queue->count) continue;
        double wait = full || !queue->rate ? AGAIN_US : queue->next_us - now;
        if (wait < least) least = wait;
    }
    return least <= 0 ? 0 : (int)(least / 1e3 + 0.999);
}

/* Turns until the control socket has something, a signal came, or `most_us` have passed. */
EXPORT void p4_host_run(struct host *host, uint64_t most_us) {
    double end = now_us(host) + (double)most_us;
    int full = 0;
    for (uint32_t turns = 1;; turns++) {
        double left = end - now_us(host);
        int ready = poll(host->polled, host->ports + 1, sleep_ms(host, full, left > 0 ? left : 0));
        if (ready < 0 && errno == EINTR) break;
        full = 0;
        for (uint32_t i = 0; ready > 0 && i < host->ports; i++)
            if (host->polled[i].revents & (POLLIN | POLLERR)) take(host, &host->port[i]);
        for (uint32_t i = 0; i < host->ports; i++)
            if (host->port[i].queue.count) full |= send_due(host, &host->port[i]);
        if (now_us(host) >= end || (host->polled[host->ports].revents && turns % EVERY_TURNS == 0)) break;
        if (host->polled[host->ports].revents && ready == 1) break; /* only it */
    }
    for (uint32_t i = 0; i < host->ports; i++) {
        capture_flush(host, &host->port[i].in);
        capture_flush(host, &host->port[i].out);
    }
}

static void capture_start(struct capture *capture, int fd) {
    capture->fd = fd;
    if (fd >= 0 && !(capture->bytes = malloc(CAPTURE_BYTES))) capture->fd = -1;
}

EXPORT void p4_host_free(struct host *host) {
    if (!host) return;
    for (uint32_t i = 0; host->port && i < host->ports; i++) {
        struct port *port = &host->port[i];
        while (port->queue.count) drop_first(&port->queue);
        free(port->queue.packets);
        free(port->in.bytes);
        free(port->out.bytes);
    }
    free(host->port);
    free(host->polled);
    free(host->index_of_port);
    free(host->frames);
    free(host->batch);
    free(host);
}

/* ports: for each its socket, number, bytes of the longest packet it sends, file descriptors of its captures or -1.
   control: a file descriptor, or -1. started_ns: CLOCK_MONOTONIC. Returns NULL without memory. */
EXPORT struct host *p4_host_new(const struct calls *calls, uint32_t ports, const int32_t (*about)[5], int32_t control,
                                uint32_t frame, uint64_t started_ns) {
    struct host *host = calloc(1, sizeof *host);
    if (!host) return NULL;
    host->calls = *calls, host->ports = ports, host->frame = frame, host->started_ns = started_ns;
    host->port = calloc(ports, sizeof *host->port);
    host->polled = calloc(ports + 1, sizeof *host->polled);
    host->index_of_port = malloc((UINT16_MAX + 1) * sizeof *host->index_of_port);
    host->frames = malloc((size_t)BATCH * frame);
    host->batch = malloc((size_t)BATCH * (frame + TAG));
    if (!host->port || !host->polled || !host->index_of_port || !host->frames || !host->batch) {
        p4_host_free(host);
        return NULL;
    }
    memset(host->index_of_port, 0xff, (UINT16_MAX + 1) * sizeof *host->index_of_port);
    for (uint32_t i = 0; i < ports; i++) {
        struct port *port = &host->port[i];
        port->fd = about[i][0], port->number = (uint32_t)about[i][1], port->longest = (uint32_t)about[i][2];
        capture_start(&port->in, about[i][3]);
        capture_start(&port->out, about[i][4]);
        host->index_of_port[about[i][1]] = (int16_t)i;
        host->polled[i] = (struct pollfd){.fd = port->fd, .events = POLLIN};
        port->queue.depth = 1;
        port->queue.reported_depth = UINT32_MAX;
    }
    host->polled[ports] = (struct pollfd){.fd = control, .events = POLLIN};
    return host;
}

EXPORT void p4_host_set_queue(struct host *host, uint32_t index, uint32_t depth, uint32_t rate) {
    host->port[index].queue.depth = depth;
    host->port[index].queue.rate = rate;
}

/* A port's counters, and the packets for ports that aren't there. */
EXPORT const struct counters *p4_host_counters(const struct host *host, uint32_t index) {
    return &host->port[index].counters;
}

EXPORT uint64_t p4_host_no_port(const struct host *host) { return host->no_port; }
EXPORT int32_t p4_host_capture_error(const struct host *host) { return host->capture_error; }
EXPORT uint32_t p4_host_abi(void) { return ABI; }
