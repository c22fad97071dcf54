/* A queue for each priority class, served strictly: its oracle is tests/oracles/strict_link.py. */
#include <stdlib.h>

#include "emulation/sim/native/link.h"
#include "emulation/sim/native/waiting.h"

#define NOTHING SIM_CLASSES

typedef __int128 balance; /* units that may have been sent already */

struct sim_strict {
    struct sim_link *link;
    struct sim_deque queues[SIM_CLASSES];
    struct sim_deque later; /* what a switch's latency still holds */
    balance held[SIM_CLASSES];
    uint32_t waiting;
    uint32_t serving; /* the class of the frame on the wire, whose last bit leaves at wire_ns + wire_remainder / rate */
    int64_t wire_ns;
    uint64_t wire_remainder;
};

static void idle(void *object, struct sim_body *body, uint32_t sender, uint32_t to);

/* The wire is idle: put the most urgent frame on it. */
static void serve(struct sim_strict *strict) {
    struct sim_link *link = strict->link;
    strict->serving = 0;
    while (strict->serving < SIM_CLASSES && !strict->queues[strict->serving].count) strict->serving++;
    if (strict->serving == NOTHING) return;
    struct sim_waiting next = sim_deque_take(&strict->queues[strict->serving]);
    strict->waiting--;
    strict->held[strict->serving] -= (balance)next.body->wire_bytes * SIM_UNITS;
    sim_link_after(link, &strict->wire_ns, &strict->wire_remainder, next.body->wire_bytes);
    int64_t idle_ns = strict->wire_ns + (strict->wire_remainder > 0);
    sim_link_deliver(link, idle_ns + link->delay_ns, next.body, next.sender, next.to);
    sim_schedule(link->sim, idle_ns, idle, strict, 0, 0);
}

static void idle(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_strict *strict = object;
    (void)body, (void)sender, (void)to;
    if (strict->wire_ns + (strict->wire_remainder > 0) <= strict->link->sim->now_ns) serve(strict);
}

static int refuse(struct sim_link *link, struct sim_body *body, enum sim_fault fault) {
    link->faults[fault]++;
    sim_body_let_go(&link->sim->pool, body);
    return 0;
}

static int enqueue(struct sim_strict *strict, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_link *link = strict->link;
    int64_t now_ns = link->sim->now_ns;
    uint32_t kind = SIM_BEST_EFFORT - (to >> SIM_CLASS_SHIFT & SIM_CLASS_MASK);
    balance units = (balance)body->wire_bytes * SIM_UNITS, held = strict->held[kind];
    if (strict->serving == kind)
        held += (balance)(strict->wire_ns - now_ns) * (balance)link->rate_bps + (balance)strict->wire_remainder;
    if (held && held + units > 0 && (sim_units)(held + units) > link->queue_units)
        return refuse(link, body, SIM_DROP_QUEUE);
    if (to & SIM_DROPPABLE && held > 0 && (sim_units)held > link->drop_units) return refuse(link, body, SIM_DROP_FIRST);
    if (to & SIM_ECT && link->free_ns >= now_ns &&
        (sim_units)(uint64_t)(link->free_ns - now_ns) * link->rate_bps + link->remainder > link->ecn_units) {
        to |= SIM_CE;
        link->marked_frames++;
    }
    if (link->free_ns < now_ns || (link->free_ns == now_ns && !link->remainder)) {
        link->free_ns = now_ns;
        link->remainder = 0;
    }
    sim_link_after(link, &link->free_ns, &link->remainder, body->wire_bytes);
    link->sent_frames++;
    link->sent_bytes += body->wire_bytes;
    strict->held[kind] += units;
    strict->waiting++;
    sim_deque_put(link->sim, &strict->queues[kind], (struct sim_waiting){body, NULL, sender, to});
    if (strict->wire_ns < now_ns && strict->waiting == 1) { /* the wire is idle: since when doesn't matter */
        strict->wire_ns = now_ns;
        strict->wire_remainder = 0;
        serve(strict);
    } else if (strict->serving == NOTHING) { /* it fell idle within this very nanosecond */
        serve(strict);
    }
    return 1;
}

static void ready(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_strict *strict = object;
    (void)body;
    enqueue(strict, sim_deque_take(&strict->later).body, sender, to);
}

static int send(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to) {
    struct sim_strict *strict = link->strict;
    struct sa_sim *sim = link->sim;
    if (ready_ns == sim->now_ns && !strict->later.count) return enqueue(strict, body, sender, to);
    sim_deque_put(sim, &strict->later, (struct sim_waiting){body, NULL, sender, to});
    sim_schedule(sim, ready_ns, ready, strict, sender, to);
    return 1;
}

uint64_t sim_link_backlog_of(const struct sim_link *link, uint32_t kind) {
    return (uint64_t)((sim_units)link->strict->held[kind] / SIM_UNITS);
}

int64_t sim_link_time_at_backlog_of_ns(const struct sim_link *link, uint32_t kind, uint64_t size_bytes) {
    uint64_t backlog = sim_link_backlog_of(link, kind), left = backlog > size_bytes ? backlog - size_bytes : 0;
    return link->sim->now_ns + (int64_t)(((sim_units)left * SIM_UNITS + link->rate_bps - 1) / link->rate_bps);
}

struct sim_strict *sim_strict_new(struct sim_link *link) {
    struct sim_strict *strict = calloc(1, sizeof *strict);
    if (!strict) return NULL;
    strict->link = link;
    strict->serving = NOTHING;
    link->queue_up = send;
    return strict;
}

void sim_strict_free(struct sim_strict *strict) {
    if (!strict) return;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++) free(strict->queues[kind].places);
    free(strict->later.places);
    free(strict);
}
