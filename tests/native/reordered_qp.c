/* Two reliable queue pairs over links that delay each packet by itself, 0 to 2 * JITTER, and lose some: in virtual time.

   reordered_qp SEEDS JITTER_NS LOSS_PPM: 4,096 packets are written, with each of so many seeds; prints how many were sent
   again, timeouts, and how long it took in us. Ends with 1 if a queue pair failed, or what arrived isn't what was sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/native/roce/qp.h"

#define PACKETS 4096u
#define MTU 256u
#define MESSAGES 16u
#define BYTES (PACKETS * MTU)
#define PACKET_NS 250 /* on a wire of 10 Gb/s */
#define IN_FLIGHT_MAX 65536u

struct end {
    struct sa_memory memory;
    struct sa_cq cq;
    struct sa_qp qp;
    uint8_t *bytes;
    uint32_t key;
    int64_t free_ns; /* its wire, from then on */
};

/* In a heap by time. */
struct flying {
    int64_t at_ns;
    uint64_t number;
    uint32_t to, size;
    uint8_t *bytes;
};

static struct end ends[2];
static struct flying heap[IN_FLIGHT_MAX];
static uint32_t in_flight;
static uint64_t state, flown;
static int64_t now_ns, jitter_ns;
static uint32_t loss_ppm;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void expect(bool so, const char *what) {
    if (so) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

static bool sooner(const struct flying *a, const struct flying *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void swap(uint32_t a, uint32_t b) {
    struct flying kept = heap[a];
    heap[a] = heap[b];
    heap[b] = kept;
}

static void fly(uint32_t from, const struct sa_qp_packet *packet) {
    struct end *end = &ends[from];
    end->free_ns = (end->free_ns > now_ns ? end->free_ns : now_ns) + PACKET_NS;
    if (draw() % 1000000 < loss_ppm) return;
    uint32_t size = sa_qp_packet_bytes(packet), at = in_flight++;
    uint8_t *bytes = calloc(1, size);
    expect(bytes && in_flight < IN_FLIGHT_MAX, "there is room");
    memcpy(bytes, packet->headers, packet->headers_bytes);
    if (packet->payload_bytes) memcpy(bytes + packet->headers_bytes, packet->payload, packet->payload_bytes);
    int64_t late_ns = jitter_ns ? (int64_t)(draw() % (uint64_t)(2 * jitter_ns)) : 1000;
    heap[at] = (struct flying){end->free_ns + late_ns, flown++, 1 - from, size, bytes};
    for (; at && sooner(&heap[at], &heap[(at - 1) / 2]); at = (at - 1) / 2) swap(at, (at - 1) / 2);
}

static struct flying land(void) {
    struct flying first = heap[0];
    heap[0] = heap[--in_flight];
    for (uint32_t at = 0;;) {
        uint32_t next = 2 * at + 1;
        if (next + 1 < in_flight && sooner(&heap[next + 1], &heap[next])) next++;
        if (next >= in_flight || !sooner(&heap[next], &heap[at])) return first;
        swap(at, next);
        at = next;
    }
}

static void begin(uint32_t index) {
    struct end *end = &ends[index];
    memset(end, 0, sizeof *end);
    struct sa_qp_attributes attributes = {
        .access = SA_ACCESS_REMOTE_WRITE,
        .path_mtu = MTU,
        .peer = 0x12 - index,
        .send_psn = 0xfffff0 + index,
        .receive_psn = 0xfffff1 - index,
        .timeout = 14,
        .retry_count = 7,
        .window_packets = 256,
    };
    sa_memory_init(&end->memory);
    end->bytes = calloc(1, BYTES);
    end->key = sa_memory_register(&end->memory, 1, end->bytes, BYTES, SA_ACCESS_LOCAL_WRITE | SA_ACCESS_REMOTE_WRITE);
    expect(!sa_cq_new(&end->cq, 2 * MESSAGES) && end->key, "there is memory");
    expect(!sa_qp_init(&end->qp, 0x11 + index, SA_ROCE_RC, 1, &end->memory, &end->cq, &end->cq, MESSAGES, MESSAGES, true),
           "it is made");
    for (enum sa_qp_state next = SA_QPS_INIT; next <= SA_QPS_RTS; next++)
        expect(!sa_qp_modify(&end->qp, next, &attributes, now_ns), "it is connected");
}

/* What may leave now, a packet at a time. Returns when there may be more. */
static int64_t emit(uint32_t index) {
    struct end *end = &ends[index];
    struct sa_qp_packet packet;
    while (sa_qp_answer(&end->qp, &packet)) fly(index, &packet);
    while (end->free_ns <= now_ns && sa_qp_peek(&end->qp, now_ns, 1, SA_ROCE_PACKET_MAX, &packet)) {
        fly(index, &packet);
        sa_qp_sent(&end->qp, 1, sa_qp_packet_bytes(&packet), now_ns);
    }
    int64_t next = sa_qp_deadline_ns(&end->qp, now_ns);
    return next <= now_ns && end->free_ns > now_ns ? end->free_ns : next;
}

static void run(uint64_t seed) {
    state = seed;
    now_ns = 1000;
    begin(0);
    begin(1);
    struct end *from = &ends[0], *to = &ends[1];
    for (uint32_t i = 0; i < BYTES; i++) from->bytes[i] = (uint8_t)draw();
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint64_t at = (uint64_t)i * (BYTES / MESSAGES);
        struct sa_send_request request = {
            .address = (uintptr_t)from->bytes + at,
            .remote_address = (uintptr_t)to->bytes + at,
            .length = BYTES / MESSAGES,
            .lkey = from->key,
            .rkey = to->key,
        };
        expect(!sa_qp_post_send(&from->qp, &request), "it is posted");
    }
    while (from->cq.count < MESSAGES) {
        int64_t next = SA_QP_NEVER;
        for (uint32_t i = 0; i < 2; i++) {
            int64_t own = emit(i);
            if (own < next) next = own;
        }
        if (in_flight && heap[0].at_ns < next) next = heap[0].at_ns;
        expect(next != SA_QP_NEVER && next < INT64_C(1000000000000), "it goes on");
        if (next > now_ns) now_ns = next;
        for (uint32_t i = 0; i < 2; i++) sa_qp_tick(&ends[i].qp, now_ns);
        while (in_flight && heap[0].at_ns <= now_ns) {
            struct flying one = land();
            struct sa_roce_packet packet;
            expect(sa_roce_parse(one.bytes, one.size, &packet) == SA_ROCE_GOOD, "it is a packet");
            sa_qp_receive(&ends[one.to].qp, &packet, false, now_ns);
            free(one.bytes);
        }
    }
    expect(from->qp.state == SA_QPS_RTS && to->qp.state == SA_QPS_RTS, "no queue pair failed");
    expect(!memcmp(from->bytes, to->bytes, BYTES), "what was sent arrived");
    printf("%llu %llu %lld\n", (unsigned long long)from->qp.counters[SA_QP_RESENT_PACKETS],
           (unsigned long long)from->qp.counters[SA_QP_TIMEOUTS], (long long)(now_ns / 1000));
    while (in_flight) free(land().bytes);
    for (uint32_t i = 0; i < 2; i++) {
        sa_qp_free(&ends[i].qp);
        sa_cq_free(&ends[i].cq);
        sa_memory_clear(&ends[i].memory);
        free(ends[i].bytes);
    }
}

int main(int count, char **words) {
    expect(count == 4, "seeds, jitter and loss are given");
    jitter_ns = strtoll(words[2], NULL, 10);
    loss_ppm = (uint32_t)strtoul(words[3], NULL, 10);
    for (uint64_t seed = 0; seed < strtoull(words[1], NULL, 10); seed++) run(seed);
    return 0;
}
