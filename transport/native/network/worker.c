/* See worker.h. The endpoint decides everything; this file gives it packets and the time. */
#define _GNU_SOURCE
#include "transport/native/network/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/room.h"
#include "switchagg/native/rule/wire.h"

#define ROWS_PER_TAKE 64u       /* frames taken from the endpoint at a time, rounded down to whole sends */
#define ROWS_PER_ITERATION 128u /* frames sent before the loop receives again: results must not wait behind them */
#define QUEUE_FIRST 16u
#define STREAMS_MAX 256u
#define WATCH_NS 10000000ll /* between two looks at calls that nobody waits for, whose packets may be lost */
#define NS_PER_MS 1000000ll
#define RUNS_MAX 8u /* of frames with one TOS: the endpoint gives them in the order of their classes */

struct queue {
    struct sa_submission *entries;
    uint32_t count;
    uint32_t capacity;
};

struct events {
    struct sa_event *entries;
    uint32_t count;
    uint32_t capacity;
};

struct sa_worker {
    pthread_mutex_t loop_mutex; /* held by the thread that runs the loop; guards the members up to `lock` */
    struct sa_endpoint *endpoint;
    struct sa_udp *udp;
    int wake;
    struct sa_address peer;
    uint64_t counters[SA_WORKER_COUNTERS];
    uint32_t rows_per_take;
    uint32_t rows_per_send;
    bool marked;
    bool partial; /* the job has partial sums: results come, and are answered, also while no call is pending (Q7) */
    bool out_of_credit; /* frames may be waiting, but the credit is used up by what is in the kernel */
    int16_t tos[STREAMS_MAX];
    struct sa_hop *hop;    /* NULL: packets have no tags */
    uint8_t *frames;       /* rows_per_take of them */
    uint8_t tags[ROWS_PER_TAKE][SA_HOP_TAG_BYTES];
    uint32_t unsent_first; /* what the socket had no room for */
    uint32_t unsent_rows;
    uint32_t unsent_size;
    struct queue draining;
    int error;            /* a send by a submitter failed: the next thread in the loop returns it */
    pthread_mutex_t lock; /* guards the next four */
    struct queue submitted;
    struct events left; /* a thread that waits for another call met them: the background thread hands them out */
    bool armed;            /* a packet wakes the background thread */
    int wakeup, signals;   /* an eventfd that wakes it, and the epoll of both */
    bool handed_out;       /* only for the background thread: its last run handed out events */
    atomic_uint pending;   /* calls submitted, whose events haven't been found */
    atomic_bool active;    /* there have been calls lately: the background thread looks now and then */
    atomic_bool waiting;   /* there are submissions */
    atomic_bool called;
    atomic_bool given_out; /* events, since a thread began to wait: its call's may be among them */
    atomic_bool closed;
    atomic_bool sleeping;  /* the loop sleeps, or is about to: the thread that clears it writes the eventfd */
};

static void close_signals(struct sa_worker *worker) {
    if (worker->wakeup >= 0) close(worker->wakeup);
    if (worker->signals >= 0) close(worker->signals);
    worker->wakeup = worker->signals = -1;
}

SA_EXPORT struct sa_worker *sa_worker_new(struct sa_endpoint *endpoint, struct sa_udp *udp, int wake,
                                          const struct sa_address *peer, uint32_t rows_per_send) {
    struct sa_worker *worker = calloc(1, sizeof *worker);
    if (!worker) return NULL;
    worker->endpoint = endpoint;
    worker->udp = udp;
    worker->wake = wake;
    worker->peer = *peer;
    worker->partial = sa_endpoint_is_partial(endpoint);
    if (rows_per_send < 1 || rows_per_send > ROWS_PER_TAKE) rows_per_send = ROWS_PER_TAKE;
    worker->rows_per_send = rows_per_send;
    worker->rows_per_take = ROWS_PER_TAKE / rows_per_send * rows_per_send;
    worker->frames = malloc((size_t)worker->rows_per_take * sa_endpoint_frame_bytes(endpoint));
    worker->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    worker->signals = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event readable = {.events = EPOLLIN}, none = {.events = 0};
    if (!worker->frames || worker->wakeup < 0 || worker->signals < 0 ||
        epoll_ctl(worker->signals, EPOLL_CTL_ADD, worker->wakeup, &readable) ||
        epoll_ctl(worker->signals, EPOLL_CTL_ADD, sa_udp_descriptor(udp), &none)) {
        close_signals(worker);
        free(worker->frames);
        free(worker);
        return NULL;
    }
    pthread_mutex_init(&worker->loop_mutex, NULL); /* of these attributes neither can fail on Linux */
    pthread_mutex_init(&worker->lock, NULL);
    return worker;
}

SA_EXPORT void sa_worker_free(struct sa_worker *worker) {
    if (!worker) return;
    pthread_mutex_destroy(&worker->loop_mutex);
    pthread_mutex_destroy(&worker->lock);
    close_signals(worker);
    free(worker->draining.entries);
    free(worker->submitted.entries);
    free(worker->left.entries);
    free(worker->frames);
    sa_hop_free(worker->hop);
    free(worker);
}

SA_EXPORT void sa_worker_authenticate(struct sa_worker *worker, struct sa_hop *hop) { worker->hop = hop; }

SA_EXPORT void sa_worker_mark(struct sa_worker *worker, const int32_t *tos, uint32_t streams) {
    worker->marked = true;
    for (uint32_t stream = 0; stream < streams && stream < STREAMS_MAX; stream++) worker->tos[stream] = (int16_t)tos[stream];
}

SA_EXPORT const uint64_t *sa_worker_counters(const struct sa_worker *worker) { return worker->counters; }

/* ---- callable from any thread */

/* The eventfd is written only if the loop sleeps: a running loop checks for submissions in each iteration. */
static void wake(struct sa_worker *worker) {
    if (!atomic_exchange(&worker->sleeping, false)) return;
    uint64_t increment = 1;
    while (write(worker->wake, &increment, sizeof increment) < 0 && errno == EINTR) continue;
}

/* Whether a thread must run the loop. */
static bool is_busy(struct sa_worker *worker) { return worker->partial || atomic_load(&worker->pending); }

/* Wake the background thread. */
static void wake_background(struct sa_worker *worker) {
    uint64_t increment = 1;
    pthread_mutex_lock(&worker->lock);
    while (worker->wakeup >= 0 && write(worker->wakeup, &increment, sizeof increment) < 0 && errno == EINTR) continue;
    pthread_mutex_unlock(&worker->lock);
}

/* While no thread runs the loop, a packet wakes the background thread (on); while one does, it doesn't. A timer
   instead, which would leave more time to wait for a call, costs 20 us each time it is set on a virtual machine. */
static void arm(struct sa_worker *worker, bool on) {
    pthread_mutex_lock(&worker->lock);
    if (on != worker->armed && worker->signals >= 0) {
        struct epoll_event event = {.events = on ? EPOLLIN | EPOLLONESHOT : 0};
        worker->armed = on;
        epoll_ctl(worker->signals, EPOLL_CTL_MOD, sa_udp_descriptor(worker->udp), &event);
    }
    pthread_mutex_unlock(&worker->lock);
}

/* A thread that has unlocked the loop mutex wakes the background thread for calls that other threads submitted
   meanwhile: they haven't been sent, so that no packet would wake it. With partial sums that thread runs the loop then. */
static void pass_on(struct sa_worker *worker) {
    if (atomic_load(&worker->waiting) || worker->partial)
        wake_background(worker);
    else if (atomic_load(&worker->pending))
        arm(worker, true);
}

static int append(struct queue *queue, const struct sa_submission *entry) {
    if (!sa_takes_one(&queue->entries, queue->count, &queue->capacity, QUEUE_FIRST, sizeof *entry)) return -1;
    queue->entries[queue->count++] = *entry;
    return 0;
}

SA_EXPORT void sa_worker_call(struct sa_worker *worker) {
    atomic_store(&worker->called, true);
    wake(worker);
    wake_background(worker);
}

/* ---- one iteration: with the loop mutex */

static int take_submissions(struct sa_worker *worker) {
    if (!atomic_load(&worker->waiting)) return 0;
    struct queue emptied = worker->draining;
    emptied.count = 0;
    pthread_mutex_lock(&worker->lock);
    atomic_store(&worker->waiting, false);
    worker->draining = worker->submitted;
    worker->submitted = emptied;
    pthread_mutex_unlock(&worker->lock);
    for (uint32_t i = 0; i < worker->draining.count; i++)
        if (sa_endpoint_submit(worker->endpoint, &worker->draining.entries[i])) return -ENOMEM;
    return 0;
}

/* Keep the rows with a right tag, without it, back to back; returns how many (A5). */
static uint32_t verified(struct sa_worker *worker, const struct sa_udp_arrival *arrival) {
    uint32_t right = 0, frame_bytes = arrival->size - SA_HOP_TAG_BYTES;
    for (uint32_t row = 0; row < arrival->rows; row++) {
        const uint8_t *datagram = arrival->bytes + (size_t)row * arrival->size;
        if (!sa_hop_verify(worker->hop, datagram, arrival->size, true, 0)) continue;
        memmove(arrival->bytes + (size_t)right++ * frame_bytes, datagram, frame_bytes);
    }
    worker->counters[SA_WORKER_UNAUTHENTICATED] += arrival->rows - right;
    return right;
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
            worker->counters[SA_WORKER_UNKNOWN_SENDERS] += arrival->rows;
            continue;
        }
        uint32_t right = worker->hop ? verified(worker, arrival) : arrival->rows;
        if (!right) continue;
        if (sa_is_ce(arrival->tos)) worker->counters[SA_WORKER_ECN_MARKED] += right;
        sa_endpoint_receive(worker->endpoint, arrival->bytes, right,
                            arrival->size - (worker->hop ? SA_HOP_TAG_BYTES : 0), now_ns, sa_is_ce(arrival->tos));
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
                .bytes = frame, .size = worker->unsent_size, .to = &worker->peer, .tos = tos,
                .trailers = worker->hop ? worker->tags[worker->unsent_first + row] : NULL};
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
   credit, it takes a bundle at a time. */
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
    for (uint32_t row = 0; worker->hop && row < worker->unsent_rows; row++) {
        const uint8_t *frame = worker->frames + (size_t)row * worker->unsent_size;
        sa_hop_note(worker->hop, frame);
        sa_hop_write_tag(worker->hop, frame, sa_hop_hash(worker->hop, frame, worker->unsent_size, 0), 0,
                         worker->tags[row]);
    }
}

/* Send until the endpoint has nothing more, the socket is full, or ROWS_PER_ITERATION are sent: *more then. 0 or
   -errno. */
static int send_frames(struct sa_worker *worker, int64_t now_ns, bool *more) {
    *more = false;
    for (uint32_t rows = 0; rows < ROWS_PER_ITERATION;) {
        if (!worker->unsent_rows) take_frames(worker, now_ns);
        if (!worker->unsent_rows) return 0;
        uint32_t sent_rows;
        int result = send_unsent(worker, &sent_rows);
        if (result) return result < 0 ? result : 0;
        rows += sent_rows;
    }
    *more = true;
    return 0;
}

/* Does one iteration but for events and sleep; *more: another iteration has work. 0 or -errno. */
static int iterate(struct sa_worker *worker, bool *more) {
    if (worker->error) return worker->error;
    int result = take_submissions(worker);
    if (result) return result;
    int arrivals = receive_bundle(worker);
    if (arrivals < 0) return arrivals;
    int64_t now_ns = sa_now_ns();
    int64_t deadline_ns = sa_endpoint_next_deadline_ns(worker->endpoint);
    if (deadline_ns >= 0 && now_ns >= deadline_ns) sa_endpoint_handle_timer(worker->endpoint, now_ns);
    result = send_frames(worker, now_ns, more);
    /* A receive that finds nothing costs less than a sleep that ends at once. Polling longer before the sleep only
       takes the processor from the peers: 20 us of it, with 4 workers and the switch on 2 processors, made
       a small call 1.0 to 1.6 times slower and cost 1.4 times the CPU. */
    *more |= arrivals > 0;
    return result;
}

static bool next_event(struct sa_worker *worker, struct sa_event *event) {
    uint32_t kind = sa_endpoint_next_event(worker->endpoint, event);
    if (kind == SA_CALL_COMPLETED) atomic_fetch_sub(&worker->pending, 1);
    return kind != SA_NO_EVENT;
}

/* Sleep until there is work, but not past until_ns. Returns the reasons, 0 also for none, or -errno. */
static int sleep_until(struct sa_worker *worker, int64_t until_ns) {
    int64_t deadline_ns = sa_endpoint_next_deadline_ns(worker->endpoint);
    if (deadline_ns >= 0 && deadline_ns < until_ns) until_ns = deadline_ns;
    atomic_store(&worker->sleeping, true);
    int reasons = 0;
    /* Checked again after `sleeping` is set: a thread that changes these later sees `sleeping` and writes the eventfd. */
    if (!atomic_load(&worker->waiting) && !atomic_load(&worker->called) && !atomic_load(&worker->given_out) &&
        !atomic_load(&worker->closed))
        reasons = sa_udp_wait(worker->udp, worker->wake, until_ns, worker->unsent_rows || worker->out_of_credit);
    atomic_store(&worker->sleeping, false);
    return reasons;
}

/* ---- threads that have calls */

/* Leave an event to the background thread. 0 or -ENOMEM. */
static int leave(struct sa_worker *worker, const struct sa_event *event) {
    struct events *left = &worker->left;
    pthread_mutex_lock(&worker->lock);
    bool room = sa_takes_one(&left->entries, left->count, &left->capacity, QUEUE_FIRST, sizeof *event);
    if (room) left->entries[left->count++] = *event;
    pthread_mutex_unlock(&worker->lock);
    if (!room) return -ENOMEM;
    wake_background(worker);
    return 0;
}

SA_EXPORT int sa_worker_submit(struct sa_worker *worker, const struct sa_submission *submission) {
    pthread_mutex_lock(&worker->lock);
    int result = append(&worker->submitted, submission);
    pthread_mutex_unlock(&worker->lock);
    if (result) return -1;
    atomic_fetch_add(&worker->pending, 1);
    atomic_store(&worker->waiting, true);
    if (pthread_mutex_trylock(&worker->loop_mutex)) { /* the thread in the loop sends it, or sees it before it ends */
        wake(worker);
        return 0;
    }
    bool small = submission->count <= SA_SMALL_VALUES, more = false;
    if (small && !worker->error) {
        struct sa_event event;
        worker->error = take_submissions(worker);
        if (!worker->error) worker->error = send_frames(worker, sa_now_ns(), &more);
        while (!worker->error && next_event(worker, &event)) worker->error = leave(worker, &event); /* of no values */
    }
    bool done = small && !more && !worker->unsent_rows && !worker->out_of_credit && !worker->error;
    pthread_mutex_unlock(&worker->loop_mutex);
    if (!atomic_exchange(&worker->active, true) || !done)
        wake_background(worker);
    else
        pass_on(worker);
    return 0;
}

/* Whether another thread has met the call's event, and it isn't handed out yet; it is removed. The caller holds the
   loop mutex, so that no other thread meets it meanwhile. */
static bool was_left(struct sa_worker *worker, uint64_t call) {
    struct events *left = &worker->left;
    bool is_left = false;
    pthread_mutex_lock(&worker->lock);
    for (uint32_t i = 0; i < left->count && !is_left; i++) {
        is_left = left->entries[i].kind == SA_CALL_COMPLETED && left->entries[i].call == call;
        if (is_left) memmove(&left->entries[i], &left->entries[i + 1], (--left->count - i) * sizeof *left->entries);
    }
    pthread_mutex_unlock(&worker->lock);
    return is_left;
}

/* Run the loop with the loop mutex held, as sa_worker_wait says. */
static int run_for(struct sa_worker *worker, uint64_t call, int64_t until_ns) {
    if (was_left(worker, call)) return SA_FINISHED;
    for (;;) {
        if (atomic_load(&worker->called) || atomic_load(&worker->closed)) return SA_BUSY;
        if (atomic_exchange(&worker->given_out, false)) return SA_LOOK_AGAIN;
        bool more, finished = false;
        int result = iterate(worker, &more);
        if (result) return result;
        struct sa_event event;
        while (next_event(worker, &event)) {
            bool is_awaited = event.kind == SA_CALL_COMPLETED && event.call == call;
            finished |= is_awaited;
            if (!is_awaited && leave(worker, &event)) return -ENOMEM;
        }
        if (finished) return SA_FINISHED;
        if (!atomic_load(&worker->pending)) return SA_BUSY; /* the background thread has its event */
        if (more) {
            if (sa_now_ns() >= until_ns) return SA_LOOK_AGAIN;
            continue;
        }
        int reasons = sleep_until(worker, until_ns);
        if (reasons < 0) return reasons;
        if (reasons & SA_WOKE_CALLED || sa_now_ns() >= until_ns) return SA_LOOK_AGAIN;
    }
}

SA_EXPORT int sa_worker_wait(struct sa_worker *worker, uint64_t call, int64_t limit_ns, int *finished) {
    if (pthread_mutex_trylock(&worker->loop_mutex)) return SA_BUSY;
    arm(worker, false);
    int result = run_for(worker, call, sa_now_ns() + limit_ns);
    pthread_mutex_unlock(&worker->loop_mutex);
    pass_on(worker);
    if (result == SA_FINISHED) *finished = 1;
    return result;
}

/* ---- the background thread */

/* Events that threads that wait have left. */
static uint32_t take_left(struct sa_worker *worker, struct sa_event *events, uint32_t room) {
    struct events *left = &worker->left;
    pthread_mutex_lock(&worker->lock);
    uint32_t count = left->count < room ? left->count : room;
    if (count) {
        memcpy(events, left->entries, count * sizeof *events);
        left->count -= count;
        memmove(left->entries, left->entries + count, left->count * sizeof *events);
    }
    pthread_mutex_unlock(&worker->lock);
    return count;
}

/* Sleep while no one needs this thread, but not past until_ns, and not for long while calls are made. */
static void sleep_idle(struct sa_worker *worker, int64_t until_ns) {
    int64_t now_ns = sa_now_ns();
    bool active = atomic_load(&worker->active);
    if (active && now_ns + WATCH_NS < until_ns) until_ns = now_ns + WATCH_NS;
    int64_t left_ms = until_ns > now_ns ? (until_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;
    struct epoll_event ready[2];
    int count = epoll_wait(worker->signals, ready, 2, (int)left_ms);
    if (!count && active && !atomic_load(&worker->pending)) {
        atomic_store(&worker->active, false);
        /* A call that was made before that writes no wakeup. */
        if (atomic_load(&worker->pending)) atomic_store(&worker->active, true);
    }
    uint64_t times;
    pthread_mutex_lock(&worker->lock);
    worker->armed = false; /* if not, one packet wakes this thread in vain */
    (void)!read(worker->wakeup, &times, sizeof times);
    pthread_mutex_unlock(&worker->lock);
}

/* Run the loop with the loop mutex held while calls are pending, as sa_worker_run says. */
static int run_pending(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room) {
    atomic_store(&worker->given_out, false); /* nobody else runs the loop now */
    while (is_busy(worker) && !atomic_load(&worker->called)) {
        bool more;
        int result = iterate(worker, &more);
        if (result) return result;
        uint32_t count = 0;
        while (count < room && next_event(worker, &events[count])) count++;
        if (count) return (int)count;
        if (sa_now_ns() >= until_ns) return 0;
        if (more) continue;
        result = sleep_until(worker, until_ns);
        if (result < 0) return result;
    }
    return 0;
}

static int run(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room) {
    for (;;) {
        uint32_t count = take_left(worker, events, room);
        if (count) return (int)count;
        if (atomic_exchange(&worker->called, false)) return 0;
        bool late = sa_now_ns() >= until_ns;
        if ((late || is_busy(worker)) && !pthread_mutex_trylock(&worker->loop_mutex)) {
            arm(worker, false);
            /* Now and then also without calls, so that what comes unasked doesn't fill the socket. */
            int result = late ? receive_bundle(worker) : run_pending(worker, until_ns, events, room);
            pthread_mutex_unlock(&worker->loop_mutex);
            if (result && !(late && result > 0)) return result;
            if (!late) continue;
        }
        if (late) return 0;
        sleep_idle(worker, until_ns);
    }
}

SA_EXPORT int sa_worker_run(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room) {
    if (worker->handed_out) {
        atomic_store(&worker->given_out, true);
        wake(worker);
    }
    int result = run(worker, until_ns, events, room);
    worker->handed_out = result > 0;
    return result;
}

SA_EXPORT void sa_worker_close(struct sa_worker *worker) {
    atomic_store(&worker->closed, true);
    wake(worker);
    pthread_mutex_lock(&worker->loop_mutex);
    pthread_mutex_unlock(&worker->loop_mutex);
    pthread_mutex_lock(&worker->lock);
    close_signals(worker);
    pthread_mutex_unlock(&worker->lock);
}

SA_EXPORT int sa_worker_finish(struct sa_worker *worker, struct sa_event *events, uint32_t room) {
    int result = take_submissions(worker);
    if (result) return result;
    uint32_t count = take_left(worker, events, room);
    while (count < room && next_event(worker, &events[count])) count++;
    return (int)count;
}
