#define _GNU_SOURCE
#include "transport/native/rdma/rdma.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "switchagg/native/abi.h"
#include "transport/native/rdma/rdma_wire.h"

#define CQS_MAX 4096u
#define DOMAINS_MAX 4096u
#define BUNDLES_PER_ITERATION 4u /* of each queue pair, before the socket is read again */
#define QUEUE_PAIRS_MAX 65536u
#define NS_PER_S 1000000000
#define AWAKE INT64_MIN

struct sa_rdma {
    pthread_mutex_t lock;
    pthread_cond_t completed;
    atomic_uint callers; /* threads that want the lock: the loop, which takes it again and again, lets them in */
    atomic_bool stopped;
    atomic_bool running; /* a thread is in sa_rdma_progress */
    struct sa_rdma_wire wire;
    struct sa_memory memory;
    struct sa_cq *cqs[CQS_MAX];
    uint32_t cqs_used;
    bool domains[DOMAINS_MAX]; /* domain d is domains[d - 1] */
    struct sa_rdma_port **ports; /* by number mod ports_size */
    uint32_t ports_size;
    uint32_t *live; /* indices of the ports in use, in the order in which they send */
    uint32_t live_count;
    uint32_t turn; /* which of them sends next */
    uint32_t next_number;
    uint32_t waiters;
    int64_t sleeps_until; /* AWAKE, or when the loop's present sleep ends */
    uint64_t pushed_seen;
};

/* ---- creation, stop, locking */

static int prepare_lock(struct sa_rdma *rdma) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes)) return -ENOMEM;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(&rdma->completed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (failed) return -ENOMEM;
    if (!pthread_mutex_init(&rdma->lock, NULL)) return 0;
    pthread_cond_destroy(&rdma->completed);
    return -ENOMEM;
}

SA_EXPORT struct sa_rdma *sa_rdma_new(const struct sa_rdma_options *options) {
    uint32_t ports_size = options->queue_pairs;
    if (!ports_size || ports_size > QUEUE_PAIRS_MAX || ports_size & (ports_size - 1) || !options->segments_max ||
        options->segments_max > SA_BUNDLE_PACKETS) {
        errno = EINVAL;
        return NULL;
    }
    struct sa_rdma *rdma = calloc(1, sizeof *rdma);
    if (!rdma) return NULL;
    rdma->ports_size = ports_size;
    rdma->next_number = ports_size; /* above the reserved numbers 0 and 1, as `ports_size` more are with each round */
    rdma->sleeps_until = AWAKE;
    if (rdma->next_number < 2) rdma->next_number = 2;
    sa_memory_init(&rdma->memory);
    rdma->ports = calloc(ports_size, sizeof *rdma->ports);
    rdma->live = calloc(ports_size, sizeof *rdma->live);
    int result = rdma->ports && rdma->live ? prepare_lock(rdma) : -ENOMEM;
    if (!result) {
        result = sa_rdma_wire_init(&rdma->wire, options);
        if (!result) return rdma;
        pthread_mutex_destroy(&rdma->lock);
        pthread_cond_destroy(&rdma->completed);
    }
    free(rdma->ports);
    free(rdma->live);
    free(rdma);
    errno = -result;
    return NULL;
}

SA_EXPORT void sa_rdma_free(struct sa_rdma *rdma) {
    if (!rdma) return;
    for (uint32_t i = 0; i < rdma->live_count; i++) {
        struct sa_rdma_port *port = rdma->ports[rdma->live[i]];
        sa_qp_free(&port->qp);
        free(port);
    }
    for (uint32_t i = 0; i < rdma->cqs_used; i++)
        if (rdma->cqs[i]) {
            sa_cq_free(rdma->cqs[i]);
            free(rdma->cqs[i]);
        }
    sa_memory_clear(&rdma->memory);
    sa_rdma_wire_clear(&rdma->wire);
    pthread_mutex_destroy(&rdma->lock);
    pthread_cond_destroy(&rdma->completed);
    free(rdma->ports);
    free(rdma->live);
    free(rdma);
}

SA_EXPORT void sa_rdma_wake(struct sa_rdma *rdma) {
    uint64_t increment = 1;
    if (write(rdma->wire.options.wake, &increment, sizeof increment) < 0) return; /* full: it is awake */
}

static void enter(struct sa_rdma *rdma) {
    atomic_fetch_add(&rdma->callers, 1);
    pthread_mutex_lock(&rdma->lock);
    atomic_fetch_sub(&rdma->callers, 1);
}

static void leave(struct sa_rdma *rdma) { pthread_mutex_unlock(&rdma->lock); }

SA_EXPORT void sa_rdma_stop(struct sa_rdma *rdma) {
    enter(rdma);
    atomic_store(&rdma->stopped, true);
    pthread_cond_broadcast(&rdma->completed);
    leave(rdma);
    sa_rdma_wake(rdma);
}

/* ---- the loop */

static uint64_t pushed(const struct sa_rdma *rdma) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rdma->cqs_used; i++)
        if (rdma->cqs[i]) sum += rdma->cqs[i]->pushed;
    return sum;
}

/* Wake the threads that wait for completions. Returns whether there were new ones. */
static bool announce(struct sa_rdma *rdma) {
    uint64_t now = pushed(rdma);
    if (now == rdma->pushed_seen) return false;
    rdma->pushed_seen = now;
    if (rdma->waiters) pthread_cond_broadcast(&rdma->completed);
    return true;
}

/* Send what may leave now, up to a bound. Returns whether anything left. */
static bool transmit(struct sa_rdma *rdma, int64_t now_ns) {
    bool moved = false;
    if (rdma->wire.full_until_ns > now_ns) return false;
    rdma->wire.full = false;
    for (uint32_t i = 0; i < rdma->live_count && !rdma->wire.full; i++) {
        struct sa_rdma_port *port = rdma->ports[rdma->live[i]];
        while (port->qp.answers && sa_rdma_wire_answer(&rdma->wire, port)) moved = true;
    }
    /* Queue pairs take turns, a bundle each, as those of a NIC do. What the socket had no room for goes first next time:
       begun at the same one each time, the others would wait for all of its window. */
    for (uint32_t idle = 0, sends = BUNDLES_PER_ITERATION * rdma->live_count; idle < rdma->live_count && sends; sends--) {
        uint32_t turn = rdma->turn % rdma->live_count;
        bool left = sa_rdma_wire_send(&rdma->wire, rdma->ports[rdma->live[turn]], now_ns);
        if (rdma->wire.full) break;
        rdma->turn = turn + 1;
        idle = left ? 0 : idle + 1;
        moved |= left;
    }
    return moved;
}

static int64_t deadline(struct sa_rdma *rdma, int64_t now_ns) {
    int64_t first = SA_QP_NEVER;
    for (uint32_t i = 0; i < rdma->live_count; i++) {
        int64_t port_ns = sa_qp_deadline_ns(&rdma->ports[rdma->live[i]]->qp, now_ns);
        if (port_ns < first) first = port_ns;
    }
    if (rdma->wire.full && first <= now_ns) first = rdma->wire.full_until_ns > now_ns ? rdma->wire.full_until_ns : SA_QP_NEVER;
    return first;
}

/* Does one iteration under the lock. Returns whether anything was received or sent; negative: -errno. */
static int iterate(struct sa_rdma *rdma) {
    int64_t now_ns = sa_now_ns();
    int64_t packets = sa_rdma_wire_receive(&rdma->wire, rdma->ports, rdma->ports_size, now_ns);
    if (packets < 0) return (int)packets;
    for (uint32_t i = 0; i < rdma->live_count; i++) sa_qp_tick(&rdma->ports[rdma->live[i]]->qp, now_ns);
    return transmit(rdma, now_ns) || packets;
}

SA_EXPORT int sa_rdma_progress(struct sa_rdma *rdma, int64_t until_ns, int64_t gather_ns, bool stay) {
    int64_t gathered_ns = INT64_MAX;
    int result = 0;
    bool called = false;
    if (atomic_exchange(&rdma->running, true)) return -EBUSY;
    pthread_mutex_lock(&rdma->lock);
    uint64_t at_first = pushed(rdma);
    for (;;) {
        if (atomic_load(&rdma->stopped)) {
            result = -ESHUTDOWN;
            break;
        }
        int moved = iterate(rdma);
        announce(rdma);
        if (moved < 0) {
            result = moved;
            break;
        }
        int64_t now_ns = sa_now_ns();
        if (!stay && gathered_ns == INT64_MAX && pushed(rdma) != at_first) gathered_ns = now_ns + gather_ns;
        if (gathered_ns < until_ns) until_ns = gathered_ns;
        if (now_ns >= until_ns || (!stay && called)) break;
        int64_t next = moved ? now_ns : deadline(rdma, now_ns);
        rdma->sleeps_until = next > now_ns ? (next < until_ns ? next : until_ns) : AWAKE;
        bool sleeps = rdma->sleeps_until != AWAKE, full = rdma->wire.full;
        int64_t wake_ns = rdma->sleeps_until;
        pthread_mutex_unlock(&rdma->lock);
        if (sleeps) {
            int reasons = sa_udp_wait(rdma->wire.udp, rdma->wire.options.wake, wake_ns, full);
            called = reasons > 0 && reasons & SA_WOKE_CALLED;
            result = reasons < 0 ? reasons : 0;
        }
        for (int i = 0; i < 100 && atomic_load(&rdma->callers); i++) sched_yield();
        pthread_mutex_lock(&rdma->lock);
        rdma->sleeps_until = AWAKE;
        if (result) break;
    }
    pthread_mutex_unlock(&rdma->lock);
    atomic_store(&rdma->running, false);
    return result;
}

/* ---- domains and memory */

SA_EXPORT int64_t sa_rdma_alloc_domain(struct sa_rdma *rdma) {
    int64_t domain = -ENOMEM;
    enter(rdma);
    for (uint32_t i = 0; i < DOMAINS_MAX && domain < 0; i++)
        if (!rdma->domains[i]) {
            rdma->domains[i] = true;
            domain = i + 1;
        }
    leave(rdma);
    return domain;
}

static bool domain_exists(const struct sa_rdma *rdma, uint32_t domain) {
    return domain && domain <= DOMAINS_MAX && rdma->domains[domain - 1];
}

SA_EXPORT int sa_rdma_free_domain(struct sa_rdma *rdma, uint32_t domain) {
    enter(rdma);
    int result = domain_exists(rdma, domain) ? 0 : -EINVAL;
    if (!result && sa_memory_uses_domain(&rdma->memory, domain)) result = -EBUSY;
    for (uint32_t i = 0; i < rdma->live_count && !result; i++)
        if (rdma->ports[rdma->live[i]]->qp.domain == domain) result = -EBUSY;
    if (!result) rdma->domains[domain - 1] = false;
    leave(rdma);
    return result;
}

SA_EXPORT int64_t sa_rdma_register(struct sa_rdma *rdma, uint32_t domain, uint64_t address, uint64_t length,
                                   uint32_t access) {
    bool remote = access & SA_ACCESS_REMOTE_WRITE, local = access & SA_ACCESS_LOCAL_WRITE;
    if (access & ~(uint32_t)(SA_ACCESS_LOCAL_WRITE | SA_ACCESS_REMOTE_WRITE) || (remote && !local) || !address ||
        address + length < address)
        return -EINVAL;
    enter(rdma);
    int64_t key = -EINVAL;
    if (domain_exists(rdma, domain)) {
        key = sa_memory_register(&rdma->memory, domain, (uint8_t *)(uintptr_t)address, length, access);
        if (!key) key = -ENOMEM;
    }
    leave(rdma);
    return key;
}

SA_EXPORT int sa_rdma_deregister(struct sa_rdma *rdma, uint32_t key) {
    enter(rdma);
    int result = sa_memory_forget(&rdma->memory, key);
    leave(rdma);
    return result;
}

/* ---- completion queues */

SA_EXPORT int64_t sa_rdma_create_cq(struct sa_rdma *rdma, uint32_t capacity) {
    struct sa_cq *cq = calloc(1, sizeof *cq);
    if (!cq) return -ENOMEM;
    int64_t result = sa_cq_new(cq, capacity);
    if (result) {
        free(cq);
        return result;
    }
    enter(rdma);
    uint32_t index = 0;
    while (index < rdma->cqs_used && rdma->cqs[index]) index++;
    if (index < CQS_MAX) {
        rdma->cqs[index] = cq;
        if (index == rdma->cqs_used) rdma->cqs_used++;
        result = index;
    } else {
        result = -ENOMEM;
    }
    rdma->pushed_seen = pushed(rdma);
    leave(rdma);
    if (result < 0) {
        sa_cq_free(cq);
        free(cq);
    }
    return result;
}

static struct sa_cq *cq_of(const struct sa_rdma *rdma, uint32_t cq) {
    return cq < rdma->cqs_used ? rdma->cqs[cq] : NULL;
}

SA_EXPORT int sa_rdma_destroy_cq(struct sa_rdma *rdma, uint32_t number) {
    enter(rdma);
    struct sa_cq *cq = cq_of(rdma, number);
    int result = !cq ? -EINVAL : cq->users ? -EBUSY : 0;
    if (!result) {
        rdma->cqs[number] = NULL;
        sa_cq_free(cq);
        free(cq);
        pthread_cond_broadcast(&rdma->completed); /* threads that wait for it find it gone */
    }
    rdma->pushed_seen = pushed(rdma);
    leave(rdma);
    return result;
}

SA_EXPORT int sa_rdma_poll(struct sa_rdma *rdma, uint32_t number, struct sa_completion *completions, uint32_t most,
                           int64_t until_ns) {
    struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    bool late = !until_ns;
    enter(rdma);
    struct sa_cq *cq = cq_of(rdma, number);
    while (cq && !cq->count && !late && !cq->called && !atomic_load(&rdma->stopped)) {
        rdma->waiters++;
        late = pthread_cond_timedwait(&rdma->completed, &rdma->lock, &until) == ETIMEDOUT;
        rdma->waiters--;
        cq = cq_of(rdma, number);
    }
    if (cq && until_ns) cq->called = false;
    int count = cq ? (int)sa_cq_poll(cq, completions, most) : -EINVAL;
    if (!count && atomic_load(&rdma->stopped)) count = -ESHUTDOWN;
    leave(rdma);
    return count;
}

SA_EXPORT int sa_rdma_interrupt(struct sa_rdma *rdma, uint32_t number) {
    enter(rdma);
    struct sa_cq *cq = cq_of(rdma, number);
    if (cq) {
        cq->called = true;
        pthread_cond_broadcast(&rdma->completed);
    }
    leave(rdma);
    return cq ? 0 : -EINVAL;
}

/* ---- queue pairs */

static struct sa_rdma_port *port_of(const struct sa_rdma *rdma, uint32_t number) {
    struct sa_rdma_port *port = rdma->ports[number & (rdma->ports_size - 1)];
    return port && port->qp.number == number ? port : NULL;
}

SA_EXPORT int64_t sa_rdma_create_qp(struct sa_rdma *rdma, const struct sa_rdma_queue_pair *wanted) {
    struct sa_rdma_port *port = calloc(1, sizeof *port);
    if (!port) return -ENOMEM;
    enter(rdma);
    struct sa_cq *sends = cq_of(rdma, wanted->send_cq), *receives = cq_of(rdma, wanted->receive_cq);
    int64_t result = sends && receives && domain_exists(rdma, wanted->domain) ? 0 : -EINVAL;
    if (!result && rdma->live_count == rdma->ports_size) result = -ENOMEM;
    uint32_t number = rdma->next_number;
    while (!result && (number < 2 || rdma->ports[number & (rdma->ports_size - 1)])) number = sa_psn_add(number, 1);
    if (!result)
        result = sa_qp_init(&port->qp, number, wanted->transport, wanted->domain, &rdma->memory, sends, receives,
                            wanted->send_depth, wanted->receive_depth, wanted->signal_all);
    if (!result) {
        rdma->next_number = sa_psn_add(number, 1);
        rdma->ports[number & (rdma->ports_size - 1)] = port;
        rdma->live[rdma->live_count++] = number & (rdma->ports_size - 1);
        result = number;
        port = NULL;
    }
    leave(rdma);
    free(port);
    return result;
}

SA_EXPORT int sa_rdma_destroy_qp(struct sa_rdma *rdma, uint32_t number) {
    enter(rdma);
    struct sa_rdma_port *port = port_of(rdma, number);
    if (port) {
        uint32_t index = number & (rdma->ports_size - 1), i = 0;
        while (rdma->live[i] != index) i++;
        memmove(&rdma->live[i], &rdma->live[i + 1], (rdma->live_count - i - 1) * sizeof *rdma->live);
        rdma->live_count--;
        rdma->ports[index] = NULL;
        sa_qp_free(&port->qp);
        free(port);
    }
    leave(rdma);
    return port ? 0 : -EINVAL;
}

/* After work was posted: send what may leave at once; wake the loop if it would sleep past the next deadline. */
static void kick(struct sa_rdma *rdma) {
    if (atomic_load(&rdma->stopped)) return;
    int64_t now_ns = sa_now_ns();
    transmit(rdma, now_ns);
    announce(rdma);
    if (rdma->sleeps_until == AWAKE || (deadline(rdma, now_ns) >= rdma->sleeps_until && !rdma->wire.full)) return;
    rdma->sleeps_until = AWAKE; /* once is enough */
    sa_rdma_wake(rdma);
}

SA_EXPORT int sa_rdma_modify_qp(struct sa_rdma *rdma, uint32_t number, uint32_t state,
                                const struct sa_qp_attributes *attributes, const struct sa_address *peer,
                                uint32_t dscp) {
    enter(rdma);
    struct sa_rdma_port *port = port_of(rdma, number);
    int result = port ? 0 : -EINVAL;
    bool connects = port && state == SA_QPS_RTR && port->qp.state == SA_QPS_INIT;
    if (connects) result = sa_rdma_wire_connect(&rdma->wire, port, peer, dscp);
    if (!result) result = sa_qp_modify(&port->qp, (enum sa_qp_state)state, attributes, sa_now_ns());
    if (port && (state == SA_QPS_RESET || (connects && result))) port->name_bytes = 0;
    if (!result) kick(rdma);
    leave(rdma);
    return result;
}

SA_EXPORT int sa_rdma_query_qp(struct sa_rdma *rdma, uint32_t number, uint64_t *counters, uint64_t *rate_bps) {
    enter(rdma);
    struct sa_rdma_port *port = port_of(rdma, number);
    int result = port ? (int)port->qp.state : -EINVAL;
    if (port && counters) memcpy(counters, port->qp.counters, sizeof port->qp.counters);
    if (port && rate_bps) *rate_bps = port->qp.paced ? sa_dcqcn_rate_bps(&port->qp.rate, sa_now_ns()) : 0;
    leave(rdma);
    return result;
}

SA_EXPORT int sa_rdma_post_send(struct sa_rdma *rdma, uint32_t number, const struct sa_send_request *requests,
                                uint32_t count) {
    int result = 0;
    uint32_t posted = 0;
    enter(rdma);
    struct sa_rdma_port *port = port_of(rdma, number);
    if (!port) result = -EINVAL;
    if (atomic_load(&rdma->stopped)) result = -ESHUTDOWN;
    while (!result && posted < count) {
        result = sa_qp_post_send(&port->qp, &requests[posted]);
        if (!result) posted++;
    }
    if (posted) kick(rdma);
    leave(rdma);
    return posted ? (int)posted : result;
}

SA_EXPORT int sa_rdma_post_receive(struct sa_rdma *rdma, uint32_t number, const struct sa_receive_request *requests,
                                   uint32_t count) {
    int result = 0;
    uint32_t posted = 0;
    enter(rdma);
    struct sa_rdma_port *port = port_of(rdma, number);
    if (!port) result = -EINVAL;
    if (atomic_load(&rdma->stopped)) result = -ESHUTDOWN;
    while (!result && posted < count) {
        result = sa_qp_post_receive(&port->qp, &requests[posted]);
        if (!result) posted++;
    }
    announce(rdma);
    leave(rdma);
    return posted ? (int)posted : result;
}

SA_EXPORT void sa_rdma_counters(struct sa_rdma *rdma, uint64_t *counters, int32_t *send_errno) {
    enter(rdma);
    memcpy(counters, rdma->wire.counters, sizeof rdma->wire.counters);
    *send_errno = rdma->wire.send_errno;
    leave(rdma);
}
