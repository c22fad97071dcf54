/* See worker.h. The endpoint decides everything; this file gives it packets and the time. */
#include "worker/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "rule/wire.h"

#define ROWS_PER_TAKE 64u       /* frames taken from the endpoint at a time, rounded down to whole sends */
#define ROWS_PER_ITERATION 128u /* frames sent before the loop receives again: results must not wait behind them */
#define QUEUE_FIRST 16u
#define STREAMS_MAX 256u
#define RUNS_MAX 8u /* of frames with one TOS: the endpoint gives them in the order of their classes */

struct queue {
    struct sa_submission *entries;
    uint32_t count;
    uint32_t capacity;
};

struct sa_worker {
    struct sa_endpoint *endpoint;
    struct sa_udp *udp;
    int wake;
    struct sa_address peer;
    uint64_t counters[SA_WORKER_COUNTERS];
    uint32_t rows_per_take;
    uint32_t rows_per_send;
    bool marked;
    bool out_of_credit; /* frames may be waiting, but the credit is used up by what is in the kernel */
    int16_t tos[STREAMS_MAX];
    uint8_t *frames;       /* rows_per_take of them */
    uint32_t unsent_first; /* what the socket had no room for */
    uint32_t unsent_rows;
    uint32_t unsent_size;
    struct queue taken; /* the loop's own */
    pthread_mutex_t lock; /* guards the next */
    struct queue submitted;
    atomic_bool waiting;  /* there are submissions */
    atomic_bool called;
    atomic_bool sleeping; /* the loop sleeps, or is about to: the thread that clears it writes the eventfd */
};

SA_EXPORT struct sa_worker *sa_worker_new(struct sa_endpoint *endpoint, struct sa_udp *udp, int wake,
                                          const struct sa_address *peer, uint32_t rows_per_send) {
    struct sa_worker *worker = calloc(1, sizeof *worker);
    if (!worker) return NULL;
    worker->endpoint = endpoint;
    worker->udp = udp;
    worker->wake = wake;
    worker->peer = *peer;
    if (rows_per_send < 1 || rows_per_send > ROWS_PER_TAKE) rows_per_send = ROWS_PER_TAKE;
    worker->rows_per_send = rows_per_send;
    worker->rows_per_take = ROWS_PER_TAKE / rows_per_send * rows_per_send;
    worker->frames = malloc((size_t)worker->rows_per_take * sa_endpoint_frame_bytes(endpoint));
    if (!worker->frames || pthread_mutex_init(&worker->lock, NULL)) {
        free(worker->frames);
        free(worker);
        return NULL;
    }
    return worker;
}

SA_EXPORT void sa_worker_free(struct sa_worker *worker) {
    if (!worker) return;
    pthread_mutex_destroy(&worker->lock);
    free(worker->taken.entries);
    free(worker->submitted.entries);
    free(worker->frames);
    free(worker);
}

SA_EXPORT void sa_worker_mark(struct sa_worker *worker, const int32_t *tos, uint32_t streams) {
    worker->marked = true;
    for (uint32_t stream = 0; stream < streams && stream < STREAMS_MAX; stream++) worker->tos[stream] = (int16_t)tos[stream];
}

SA_EXPORT const uint64_t *sa_worker_counters(const struct sa_worker *worker) { return worker->counters; }

/* ---- callable from any thread */

/* The eventfd is written only if the loop sleeps: a running loop checks for submissions in each iteration. */
static void wake(struct sa_worker *worker) {
    if (!atomic_exchange(&worker->sleeping, false)) return;
    uint64_t one = 1;
    while (write(worker->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static int append(struct queue *queue, const struct sa_submission *entry) {
    if (queue->count == queue->capacity) {
        uint32_t capacity = queue->capacity ? queue->capacity * 2 : QUEUE_FIRST;
        struct sa_submission *entries = realloc(queue->entries, capacity * sizeof *entries);
        if (!entries) return -1;
        queue->entries = entries;
        queue->capacity = capacity;
    }
    queue->entries[queue->count++] = *entry;
    return 0;
}

SA_EXPORT int sa_worker_submit(struct sa_worker *worker, const struct sa_submission *submission) {
    pthread_mutex_lock(&worker->lock);
    int result = append(&worker->submitted, submission);
    pthread_mutex_unlock(&worker->lock);
    if (result) return -1;
    atomic_store(&worker->waiting, true);
    wake(worker);
    return 0;
}

SA_EXPORT void sa_worker_call(struct sa_worker *worker) {
    atomic_store(&worker->called, true);
    wake(worker);
}

/* ---- the loop's thread */

static int take_submissions(struct sa_worker *worker) {
    if (!atomic_load(&worker->waiting)) return 0;
    struct queue emptied = worker->taken;
    emptied.count = 0;
    pthread_mutex_lock(&worker->lock);
    atomic_store(&worker->waiting, false);
    worker->taken = worker->submitted;
    worker->submitted = emptied;
    pthread_mutex_unlock(&worker->lock);
    for (uint32_t i = 0; i < worker->taken.count; i++)
        if (sa_endpoint_submit(worker->endpoint, &worker->taken.entries[i])) return -ENOMEM;
    return 0;
}

/* Returns the number of arrivals, or -errno. *rows: grows by their datagrams. */
static int receive(struct sa_worker *worker, uint32_t *rows) {
    const struct sa_udp_arrival *arrivals;
    int count = sa_udp_receive(worker->udp, &arrivals);
    int64_t now_ns = count > 0 ? sa_now_ns() : 0;
    for (int i = 0; i < count; i++) {
        const struct sa_udp_arrival *arrival = &arrivals[i];
        *rows += arrival->rows;
        if (memcmp(arrival->sender, &worker->peer, sizeof worker->peer)) {
            worker->counters[SA_WORKER_STRANGERS] += arrival->rows;
            continue;
        }
        if ((arrival->tos & 3u) == 3u) worker->counters[SA_WORKER_ECN_MARKED] += arrival->rows;
        sa_endpoint_receive(worker->endpoint, arrival->bytes, arrival->rows, arrival->size, now_ns);
    }
    return count;
}

/* Receive until results enough for a whole send have come, or nothing more has. */
static int receive_bundle(struct sa_worker *worker) {
    uint32_t rows = 0;
    for (int arrivals = 0;;) {
        int more = receive(worker, &rows);
        if (more < 0) return more;
        arrivals += more;
        if (!more || rows >= worker->rows_per_send) return arrivals;
    }
}

static int32_t tos_of(const struct sa_worker *worker, const uint8_t *frame) {
    return worker->marked ? worker->tos[frame[offsetof(struct sa_header, stream)]] : SA_TOS_OF_SOCKET;
}

/* The unsent frames as messages, a new one at each change of TOS: a bundle has one TOS. Returns how many. */
static uint32_t lay_out(const struct sa_worker *worker, struct sa_udp_message messages[RUNS_MAX]) {
    const uint8_t *frame = worker->frames + (size_t)worker->unsent_first * worker->unsent_size;
    uint32_t count = 0;
    for (uint32_t row = 0; row < worker->unsent_rows; row++, frame += worker->unsent_size) {
        int32_t tos = tos_of(worker, frame);
        if (!count || messages[count - 1].tos != tos) {
            if (count == RUNS_MAX) break;
            messages[count++] = (struct sa_udp_message){
                .bytes = frame, .size = worker->unsent_size, .to = &worker->peer, .tos = tos};
        }
        if (!worker->marked) {
            messages[0].rows = worker->unsent_rows;
            break;
        }
        messages[count - 1].rows++;
    }
    return count;
}

/* Send the unsent frames as far as the socket has room; *rows: how many were sent. 1 if it is full, else 0, or -errno. */
static int send_unsent(struct sa_worker *worker, uint32_t *rows) {
    struct sa_udp_message messages[RUNS_MAX];
    uint32_t count = lay_out(worker, messages);
    int result = sa_udp_send(worker->udp, messages, count);
    *rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        *rows += messages[i].accepted;
        if (!result && messages[i].accepted < messages[i].rows) result = 1;
    }
    worker->unsent_first += *rows;
    worker->unsent_rows -= *rows;
    return result;
}

/* Take frames from the endpoint, unless the credit is used up: no urgent frame can pass those taken already. With a
   credit, a bundle at a time. */
static void take_frames(struct sa_worker *worker, int64_t now_ns) {
    uint32_t limit = sa_udp_credit_bytes(worker->udp) ? worker->rows_per_send : worker->rows_per_take;
    worker->out_of_credit = !sa_udp_has_room(worker->udp);
    worker->unsent_first = 0;
    if (worker->out_of_credit) {
        worker->counters[SA_WORKER_CREDIT_USED]++;
        return;
    }
    worker->unsent_rows =
        sa_endpoint_frames_to_send(worker->endpoint, now_ns, limit, worker->frames, &worker->unsent_size);
}

/* Send until the endpoint has nothing more, the socket is full, or ROWS_PER_ITERATION are sent: *more then. 0 or
   -errno. */
static int send_frames(struct sa_worker *worker, int64_t now_ns, bool *more) {
    *more = false;
    for (uint32_t rows = 0; rows < ROWS_PER_ITERATION;) {
        if (!worker->unsent_rows) take_frames(worker, now_ns);
        if (!worker->unsent_rows) return 0;
        uint32_t sent;
        int result = send_unsent(worker, &sent);
        if (result) return result < 0 ? result : 0;
        rows += sent;
    }
    *more = true;
    return 0;
}

static uint32_t events_of(struct sa_worker *worker, struct sa_event *events, uint32_t room) {
    uint32_t count = 0;
    while (count < room && sa_endpoint_next_event(worker->endpoint, &events[count]) != SA_NO_EVENT) count++;
    return count;
}

/* Sleep until there is work, but not past until_ns. 0 or -errno. */
static int sleep_until(struct sa_worker *worker, int64_t until_ns) {
    int64_t deadline_ns = sa_endpoint_next_deadline_ns(worker->endpoint);
    if (deadline_ns >= 0 && deadline_ns < until_ns) until_ns = deadline_ns;
    atomic_store(&worker->sleeping, true);
    int reasons = 0;
    /* Checked again after `sleeping` is set: a thread that submits later sees `sleeping` and writes the eventfd. */
    if (!atomic_load(&worker->waiting) && !atomic_load(&worker->called))
        reasons = sa_udp_wait(worker->udp, worker->wake, until_ns, worker->unsent_rows || worker->out_of_credit);
    atomic_store(&worker->sleeping, false);
    return reasons < 0 ? reasons : 0;
}

SA_EXPORT int sa_worker_run(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room) {
    for (;;) {
        int result = take_submissions(worker);
        if (result) return result;
        if (atomic_exchange(&worker->called, false)) return 0;
        int arrivals = receive_bundle(worker);
        if (arrivals < 0) return arrivals;
        int64_t now_ns = sa_now_ns();
        int64_t deadline_ns = sa_endpoint_next_deadline_ns(worker->endpoint);
        if (deadline_ns >= 0 && now_ns >= deadline_ns) sa_endpoint_handle_timer(worker->endpoint, now_ns);
        bool more;
        result = send_frames(worker, now_ns, &more);
        if (result) return result;
        uint32_t count = events_of(worker, events, room);
        if (count) return (int)count;
        if (now_ns >= until_ns) return 0;
        /* A receive that finds nothing costs less than a sleep that ends at once. Polling longer before the sleep only
           takes the processor from the peers: 20 us of it, with 4 workers and the switch on 2 processors, made
           a small call 1.0 to 1.6 times slower and cost 1.4 times the CPU. */
        if (more || arrivals) continue;
        result = sleep_until(worker, until_ns);
        if (result) return result;
    }
}
