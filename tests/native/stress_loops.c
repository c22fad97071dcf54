/* The loops of a switch and of two workers, each in a thread, over loopback, with calls from other threads and wake-ups
   all the while; meant for ThreadSanitizer. Now and then who has submitted waits for it, and runs the loop. Loops are closed
   while somebody waits for a call that nobody else makes. A lost wake-up makes it hang: nobody looks again for an hour. Who submitted counts how often it looks for a completion in vain, which a
   slow machine doesn't add to. Ends with 0, or says what is wrong.

   usage: stress_loops CALLS PAUSE_US: a pause of 0 means no wake-ups but those of the calls */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/native/network/switch.h"
#include "transport/native/network/worker.h"

#define WORKERS 2u
#define STREAMS 2u
#define WINDOW 4u
#define ELEMENTS 8u
#define VALUES 50u
#define HOUR_NS 3600000000000ll
#define HANGS_S 120
#ifndef LOOKS_MOST
#define LOOKS_MOST 40000 /* in vain; each lets the loops run */
#endif

#define REQUIRE(condition)                                              \
    do {                                                                \
        if (!(condition)) {                                             \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

struct end {
    struct sa_udp *udp;
    struct sa_address address;
    int wake;
};

static struct sa_switch *sw;
static struct end hub, ends[WORKERS];
static struct sa_endpoint *endpoints[WORKERS];
static struct sa_worker *workers[WORKERS];
static uint32_t calls; /* of each stream */
static uint32_t pause_us;
static int32_t *values[WORKERS][STREAMS];
static atomic_uint done[WORKERS][STREAMS]; /* calls */
static atomic_bool over;
static atomic_uint unanswered, closed; /* calls that worker 0 alone makes; loops */

static struct end open_end(void) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    REQUIRE(descriptor >= 0 && !bind(descriptor, (struct sockaddr *)&name, length));
    REQUIRE(!getsockname(descriptor, (struct sockaddr *)&name, &length));
    struct sa_udp_options options = {.descriptor = descriptor, .segments_max = 16, .receive_messages = 16,
                                     .receive_bytes = 2048};
    struct end end = {sa_udp_new(&options), {.family = AF_INET, .port = ntohs(name.sin_port), .host = {127, 0, 0, 1}},
                      eventfd(0, EFD_NONBLOCK)};
    REQUIRE(end.udp && end.wake >= 0);
    return end;
}

static void *run_switch(void *unused) {
    while (!atomic_load(&over)) REQUIRE(sa_switch_run(sw, sa_now_ns() + HOUR_NS) >= 0);
    return unused;
}

static uint64_t name_of(uint32_t call, uint32_t stream) { return (uint64_t)call * STREAMS + stream + 1; }

/* What sa_worker_close leaves: no event, and of the last call no row. */
static void close_loop(uint32_t rank) {
    struct sa_event event;
    uint8_t held[VALUES];
    sa_worker_close(workers[rank]);
    REQUIRE(!sa_worker_finish(workers[rank], &event, 1));
    for (uint32_t stream = 0; stream < STREAMS && !rank; stream++) {
        REQUIRE(!sa_endpoint_held(endpoints[rank], name_of(calls, stream), held, VALUES));
        for (uint32_t row = 0; row < VALUES; row++) REQUIRE(!held[row]);
    }
    atomic_fetch_add(&closed, 1);
}

static void *run_worker(void *at) {
    uint32_t rank = (uint32_t)(uintptr_t)at;
    struct sa_event events[8];
    while (!atomic_load(&over)) {
        int count = sa_worker_run(workers[rank], sa_now_ns() + HOUR_NS, events, 8);
        REQUIRE(count >= 0);
        for (int i = 0; i < count; i++) {
            REQUIRE(events[i].kind == SA_CALL_COMPLETED);
            atomic_fetch_add(&done[rank][events[i].stream], 1);
        }
    }
    close_loop(rank);
    return NULL;
}

static void wait_for(uint32_t rank, uint32_t stream, uint32_t count) {
    uint32_t seen = 0, looks = 0;
    for (uint32_t now; (now = atomic_load(&done[rank][stream])) < count; usleep(100)) {
        looks = now > seen ? 0 : looks + 1;
        seen = now;
        if (looks > LOOKS_MOST) {
            fprintf(stderr, "it hangs after call %u of worker %u, stream %u\n", now, rank, stream);
            exit(1);
        }
    }
}

/* Wait for a call, the newest: run the loop, unless another thread does. */
static void run_for(uint32_t rank, uint32_t stream, uint32_t call) {
    for (int found = SA_LOOK_AGAIN, finished = 0; found == SA_LOOK_AGAIN;) {
        found = sa_worker_wait(workers[rank], name_of(call, stream), HOUR_NS, &finished);
        REQUIRE(found >= 0 && finished == (found == SA_FINISHED));
        if (found == SA_FINISHED) atomic_fetch_add(&done[rank][stream], 1);
    }
    wait_for(rank, stream, call + 1);
}

static void submit_call(uint32_t rank, uint32_t stream, uint32_t call) {
    int32_t *array = values[rank][stream] + call * VALUES;
    for (uint32_t i = 0; i < VALUES; i++) array[i] = (int32_t)(call + i + rank);
    struct sa_submission submission = {
        .call = name_of(call, stream), .data = array, .count = VALUES, .stream = stream,
        .codec = (uint32_t)sa_codec_number("plain"), .dtype = SA_INT32, .op = SA_OP_SUM, .unit = 1,
        .description = {call % 2, call, VALUES, stream}};
    REQUIRE(!sa_worker_submit(workers[rank], &submission));
}

/* Wait for a call without an end, until the loop is closed. */
static void wait_in_vain(uint32_t rank, uint32_t stream) {
    submit_call(rank, stream, calls);
    atomic_fetch_add(&unanswered, 1);
    for (bool last = false; !last; usleep(100)) {
        int finished = 0;
        last = atomic_load(&closed) == WORKERS;
        int result = sa_worker_wait(workers[rank], name_of(calls, stream), HOUR_NS, &finished);
        REQUIRE(!finished && (result == SA_BUSY || (result == SA_LOOK_AGAIN && !last)));
    }
}

/* Now and then it waits for all it has submitted, so that the loops go to sleep. */
static void *submit(void *at) {
    uint32_t rank = (uint32_t)(uintptr_t)at / STREAMS, stream = (uint32_t)(uintptr_t)at % STREAMS;
    for (uint32_t call = 0; call < calls; call++) {
        submit_call(rank, stream, call);
        if (call % 5 == 4) wait_for(rank, stream, call + 1);
        if (call % 5 == 2) run_for(rank, stream, call);
    }
    wait_for(rank, stream, calls);
    if (!rank) wait_in_vain(rank, stream);
    return NULL;
}

static void *call_all(void *unused) {
    const uint64_t one = 1;
    while (pause_us && !atomic_load(&over)) {
        for (uint32_t rank = 0; rank < WORKERS; rank++) sa_worker_call(workers[rank]);
        REQUIRE(write(hub.wake, &one, sizeof one) == sizeof one);
        usleep(pause_us);
    }
    return unused;
}

static void hang(int signal) {
    static const char said[] = "it hangs: somebody waits\n";
    (void)!write(2, said, signal == SIGALRM ? sizeof said - 1 : 0);
    _exit(1);
}

static void check_sums(void) {
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        for (uint32_t stream = 0; stream < STREAMS; stream++)
            for (uint32_t i = 0; i < calls * VALUES; i++)
                REQUIRE(values[rank][stream][i] == (int32_t)(2 * (i / VALUES + i % VALUES) + 1));
}

static void make(void) {
    const struct sa_stream streams[STREAMS] = {{0, WINDOW, 0}, {WINDOW, WINDOW, 0}};
    const struct sa_job job = {.job_id = 1, .workers = WORKERS, .elements = ELEMENTS, .stream_count = STREAMS,
                               .retry_limit = 1000, .rto_initial_ns = HOUR_NS, .rto_min_ns = HOUR_NS,
                               .rto_max_ns = HOUR_NS, .streams = streams, .congestion = SA_CONGESTION_NONE}; /* loopback loses nothing */
    const uint32_t ports[WORKERS] = {0, 1};
    const uint8_t key[SA_KEY_BYTES] = {0};
    struct sa_plane *plane = sa_plane_new();
    REQUIRE(plane && !sa_plane_admit(plane, &job, ports, WORKERS, NULL));
    hub = open_end();
    struct sa_switch_config config = {.udp = hub.udp, .plane = plane, .wake = hub.wake, .segments_max = 16,
                                      .pool_packets = 1024, .datagram_bytes = 20 + 4 * ELEMENTS + SA_HOP_TAG_BYTES};
    config.queues[SA_DIRECTION_DOWN] = (struct sa_queue_config){.limit_bytes = 1 << 20, .ecn_threshold_bytes = SA_NEVER_MARK};
    sw = sa_switch_new(&config);
    REQUIRE(sw);
    static const struct sa_hop_keys keys[WORKERS];
    sa_switch_authenticate(sw, job.job_id, sa_hop_new(ELEMENTS, WORKERS, keys, ports), NULL);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        ends[rank] = open_end();
        REQUIRE(!sa_switch_set_port(sw, rank, &ends[rank].address));
        endpoints[rank] = sa_endpoint_new(&job, rank, rank, key);
        workers[rank] = sa_worker_new(endpoints[rank], ends[rank].udp, ends[rank].wake, &hub.address, 16);
        REQUIRE(workers[rank]);
        sa_worker_authenticate(workers[rank], sa_hop_new(ELEMENTS, 1, keys, ports));
        for (uint32_t stream = 0; stream < STREAMS; stream++) {
            values[rank][stream] = calloc((calls + 1ul) * VALUES, sizeof(int32_t));
            REQUIRE(values[rank][stream]);
        }
    }
}

int main(int count, char **arguments) {
    REQUIRE(count == 3);
    calls = (uint32_t)atoi(arguments[1]);
    pause_us = (uint32_t)atoi(arguments[2]);
    make();
    signal(SIGALRM, hang);
    alarm(HANGS_S);
    pthread_t loops[WORKERS + 2], submitters[WORKERS * STREAMS];
    REQUIRE(!pthread_create(&loops[WORKERS], NULL, run_switch, NULL));
    REQUIRE(!pthread_create(&loops[WORKERS + 1], NULL, call_all, NULL));
    for (uintptr_t i = 0; i < WORKERS; i++) REQUIRE(!pthread_create(&loops[i], NULL, run_worker, (void *)i));
    for (uintptr_t i = 0; i < WORKERS * STREAMS; i++)
        REQUIRE(!pthread_create(&submitters[i], NULL, submit, (void *)i));
    for (uint32_t i = 0; i < STREAMS; i++) wait_for(1, i, calls);
    while (atomic_load(&unanswered) < STREAMS) usleep(100);
    atomic_store(&over, true);
    pthread_join(loops[WORKERS + 1], NULL);
    const uint64_t one = 1;
    REQUIRE(write(hub.wake, &one, sizeof one) == sizeof one);
    for (uint32_t rank = 0; rank < WORKERS; rank++) sa_worker_call(workers[rank]);
    for (uint32_t i = 0; i < WORKERS + 1; i++) pthread_join(loops[i], NULL);
    for (uint32_t i = 0; i < WORKERS * STREAMS; i++) pthread_join(submitters[i], NULL);
    check_sums();
    return 0;
}
