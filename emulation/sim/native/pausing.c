#include "emulation/sim/native/pausing.h"

#include <string.h>

#define PAUSE_FRAME_BYTES 64u
#define CHARGES_AT_ONCE 255u

/* A frame in the buffer of the port it came in by; frames: how many that it caused have not left yet. at: NULL: it stands for
   frames of a host in Python, which gets the notice `host` when one of them has left. */
struct sim_charge {
    struct sim_ingress *at;
    struct sim_charge *next; /* idle */
    uint32_t kind, size_bytes, frames, host;
};

struct charges {
    struct charges *next;
    struct sim_charge all[CHARGES_AT_ONCE];
};

/* All links and ports of a network share this. now: the charge of the frame that a switch is working on. */
struct sim_pfc {
    struct sim_node node; /* only to be owned */
    struct sa_sim *sim;
    struct sim_pfc_facts facts;
    struct sim_charge *now, *idle;
    struct charges *charges;
};

/* ---- charges */

static struct sim_charge *charge_new(struct sim_pfc *pfc) {
    if (!pfc->idle) {
        struct charges *more = malloc(sizeof *more);
        if (!more) {
            pfc->sim->queue.lacking = 1;
            return NULL;
        }
        more->next = pfc->charges;
        pfc->charges = more;
        for (uint32_t i = 0; i < CHARGES_AT_ONCE; i++) {
            more->all[i].next = pfc->idle;
            pfc->idle = &more->all[i];
        }
    }
    struct sim_charge *charge = pfc->idle;
    pfc->idle = charge->next;
    return charge;
}

static void signalled(void *object, struct sim_body *body, uint32_t sender, uint32_t to);

/* A pause frame leaves after the frame on the wire, before all that wait. */
static void tell(struct sim_ingress *ingress, uint32_t kind, uint32_t on) {
    struct sim_link *reverse = ingress->reverse->link;
    struct sa_sim *sim = reverse->sim;
    ingress->pauses[kind] = (uint8_t)on;
    int64_t busy_ns = ingress->reverse->is_serving && reverse->free_ns > sim->now_ns ? reverse->free_ns - sim->now_ns : 0;
    int64_t frame_ns = (int64_t)((PAUSE_FRAME_BYTES * SIM_UNITS + reverse->rate_bps - 1) / reverse->rate_bps);
    sim_schedule(sim, sim->now_ns + busy_ns + frame_ns + reverse->delay_ns, signalled, &ingress->signals[kind][on], 0, 0);
}

/* A frame of a charge has left; with the last one the buffer is free again. */
static void left(struct sim_pfc *pfc, struct sim_charge *charge) {
    charge->frames--;
    if (!charge->at) sim_notice(pfc->sim, charge->host);
    if (!charge->at || charge->frames) return;
    struct sim_ingress *ingress = charge->at;
    uint32_t kind = charge->kind;
    ingress->held_bytes[kind] -= charge->size_bytes;
    ingress->released[kind]++;
    charge->next = pfc->idle;
    pfc->idle = charge;
    if (ingress->pauses[kind] && ingress->held_bytes[kind] <= (uint64_t)pfc->facts.xon_bytes) tell(ingress, kind, 0);
}

/* ---- links */

/* A class that was idle or paused has no claim to what others had meanwhile. */
static void waits_again(struct sim_pausing *pausing, uint32_t kind) {
    if (pausing->served[kind] < pausing->turn) pausing->served[kind] = pausing->turn;
}

/* The class whose turn it is, of those that aren't paused; SIM_CLASSES: none. */
static uint32_t next_class(const struct sim_pausing *pausing) {
    uint32_t next = SIM_CLASSES;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++) {
        if (!pausing->queues[kind].count || pausing->paused_since_ns[kind] >= 0) continue;
        if (next == SIM_CLASSES || (!pausing->pfc->facts.strict && pausing->served[kind] < pausing->served[next]))
            next = kind;
    }
    return next;
}

static void finish_frame(void *object, struct sim_body *body, uint32_t sender, uint32_t to);

/* If the wire is idle: the next frame. */
static void serve(struct sim_pausing *pausing) {
    struct sim_link *link = pausing->link;
    uint32_t kind = pausing->is_serving ? SIM_CLASSES : next_class(pausing);
    if (kind == SIM_CLASSES) return;
    pausing->on_wire = sim_deque_take(&pausing->queues[kind]);
    pausing->is_serving = 1;
    uint32_t bytes = pausing->on_wire.body->wire_bytes;
    pausing->queued[kind] -= bytes;
    pausing->turn = pausing->served[kind];
    pausing->served[kind] += bytes;
    if (link->free_ns + (link->remainder > 0) < link->sim->now_ns) {
        link->free_ns = link->sim->now_ns;
        link->remainder = 0;
    }
    sim_link_after(link, &link->free_ns, &link->remainder, bytes);
    sim_schedule(link->sim, link->free_ns + (link->remainder > 0), finish_frame, pausing, 0, 0);
}

static void finish_frame(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_pausing *pausing = object;
    struct sim_link *link = pausing->link;
    struct sim_waiting frame = pausing->on_wire;
    (void)body, (void)sender, (void)to;
    pausing->is_serving = 0;
    if (frame.charge) left(pausing->pfc, frame.charge);
    sim_link_deliver(link, link->sim->now_ns + link->delay_ns, frame.body, frame.sender, frame.to);
    serve(pausing);
}

/* Marking by the length of a queue: by the link's threshold, or by chance between two (RED). */
static int marks(struct sim_pausing *pausing, uint64_t queued) {
    const struct sim_pfc_facts *facts = &pausing->pfc->facts;
    if (facts->red_most_bytes < 0) return (sim_units)queued * SIM_UNITS > pausing->link->ecn_units;
    if (queued <= (uint64_t)facts->red_least_bytes) return 0;
    if (queued > (uint64_t)facts->red_most_bytes) return 1;
    double part = (double)(int64_t)(queued - (uint64_t)facts->red_least_bytes) /
                  (double)(facts->red_most_bytes - facts->red_least_bytes);
    return sim_mersenne_next(&pausing->random) < facts->red_chance * part;
}

static int enqueue(struct sim_pausing *pausing, struct sim_waiting waiting) {
    struct sim_link *link = pausing->link;
    uint32_t kind = SIM_BEST_EFFORT - (waiting.to >> SIM_CLASS_SHIFT & SIM_CLASS_MASK);
    uint32_t bytes = waiting.body->wire_bytes;
    uint64_t queued = pausing->queued[kind];
    if (!(pausing->pfc->facts.classes >> kind & 1) && queued && (sim_units)(queued + bytes) * SIM_UNITS > link->queue_units) {
        link->faults[SIM_DROP_QUEUE]++;
        sim_body_let_go(&link->sim->pool, waiting.body);
        if (waiting.charge) left(pausing->pfc, waiting.charge);
        return 0;
    }
    if (waiting.to & SIM_ECT && marks(pausing, queued)) {
        waiting.to |= SIM_CE;
        link->marked_frames++;
    }
    if (!queued) waits_again(pausing, kind);
    link->sent_frames++;
    link->sent_bytes += bytes;
    pausing->queued[kind] += bytes;
    if (pausing->queued[kind] > pausing->most_bytes) pausing->most_bytes = pausing->queued[kind];
    sim_deque_put(link->sim, &pausing->queues[kind], waiting);
    serve(pausing);
    return 1;
}

static void ready(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_pausing *pausing = object;
    (void)body, (void)sender, (void)to;
    enqueue(pausing, sim_deque_take(&pausing->later));
}

static int send(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to) {
    struct sim_pausing *pausing = link->pausing;
    struct sim_waiting waiting = {body, pausing->pfc->now, sender, to};
    if (waiting.charge) waiting.charge->frames++;
    if (ready_ns <= link->sim->now_ns) return enqueue(pausing, waiting);
    sim_deque_put(link->sim, &pausing->later, waiting);
    sim_schedule(link->sim, ready_ns, ready, pausing, 0, 0);
    return 1;
}

static void signalled(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    const struct sim_signal *signal = object;
    struct sim_pausing *pausing = signal->to;
    int64_t *since_ns = &pausing->paused_since_ns[signal->kind], now_ns = pausing->link->sim->now_ns;
    (void)body, (void)sender, (void)to;
    if (signal->on && *since_ns < 0) {
        *since_ns = now_ns;
        pausing->pauses++;
    } else if (!signal->on && *since_ns >= 0) {
        pausing->paused_ns += now_ns - *since_ns;
        *since_ns = -1;
        waits_again(pausing, signal->kind);
        serve(pausing);
    }
}

uint64_t sim_pausing_backlog_bytes(const struct sim_link *link, int64_t now_ns) {
    const struct sim_pausing *pausing = link->pausing;
    uint64_t bytes = 0;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++) bytes += pausing->queued[kind];
    if (pausing->is_serving && link->free_ns > now_ns)
        bytes += (uint64_t)((sim_units)(uint64_t)(link->free_ns - now_ns) * link->rate_bps / SIM_UNITS);
    return bytes;
}

uint32_t sa_sim_waits_for(const struct sim_pausing *pausing, const struct sim_ingress *ingress, uint32_t kind) {
    const struct sim_deque *queue = &pausing->queues[kind];
    for (uint32_t i = 0; i < queue->count; i++) {
        const struct sim_charge *charge = queue->places[(queue->head + i) & queue->mask].charge;
        if (charge && charge->at == ingress) return 1;
    }
    return 0;
}

/* ---- ports */

/* A frame whose last bit is there. Frames that the switch sends because of it hold its room until they have left. */
static void arrived(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_ingress *ingress = object;
    struct sim_pfc *pfc = ingress->link->pfc;
    uint32_t kind = SIM_BEST_EFFORT - (to >> SIM_CLASS_SHIFT & SIM_CLASS_MASK), bytes = body->wire_bytes;
    if (!(pfc->facts.classes >> kind & 1)) {
        ingress->act(ingress->object, body, sender, to);
        return;
    }
    struct sim_charge *charge = ingress->held_bytes[kind] + bytes > ingress->room_bytes ? NULL : charge_new(pfc);
    if (!charge) {
        ingress->dropped++;
        sim_body_let_go(&pfc->sim->pool, body);
        return;
    }
    ingress->held_bytes[kind] += bytes;
    if (ingress->held_bytes[kind] > ingress->most_bytes) ingress->most_bytes = ingress->held_bytes[kind];
    *charge = (struct sim_charge){.at = ingress, .kind = kind, .size_bytes = bytes, .frames = 1}; /* until the switch has seen it */
    pfc->now = charge;
    ingress->act(ingress->object, body, sender, to);
    pfc->now = NULL;
    left(pfc, charge);
    if (ingress->held_bytes[kind] > (uint64_t)pfc->facts.xoff_bytes && !ingress->pauses[kind]) tell(ingress, kind, 1);
}

/* ---- hosts in Python */

struct sim_charge *sa_sim_backlog(struct sim_pfc *pfc, uint32_t host) {
    struct sim_charge *charge = charge_new(pfc);
    if (charge) *charge = (struct sim_charge){.host = host};
    return charge;
}

struct sim_charge *sim_pausing_charge(struct sim_link *link, struct sim_charge *charge) {
    struct sim_charge *outer = link->pausing->pfc->now;
    link->pausing->pfc->now = charge;
    return outer;
}

/* ---- building */

static void pfc_free(struct sim_node *node) {
    for (struct charges *charges = ((struct sim_pfc *)node)->charges, *next; charges; charges = next) {
        next = charges->next;
        free(charges);
    }
    free(node);
}

struct sim_pfc *sa_sim_pfc(struct sa_sim *sim, const struct sim_pfc_facts *facts) {
    struct sim_pfc *pfc = calloc(1, sizeof *pfc);
    if (!pfc) return NULL;
    pfc->node.free = pfc_free;
    pfc->sim = sim;
    pfc->facts = *facts;
    sim_own(sim, &pfc->node);
    return pfc;
}

static void pausing_free(struct sim_node *node) {
    struct sim_pausing *pausing = (struct sim_pausing *)node;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++) free(pausing->queues[kind].places);
    free(pausing->later.places);
    free(pausing);
}

struct sim_pausing *sa_sim_pausing(struct sim_link *link, struct sim_pfc *pfc, const uint32_t *words) {
    struct sim_pausing *pausing = calloc(1, sizeof *pausing);
    if (!pausing) return NULL;
    pausing->node.free = pausing_free;
    pausing->link = link;
    pausing->pfc = pfc;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++) pausing->paused_since_ns[kind] = -1;
    memcpy(&pausing->random, words, sizeof pausing->random);
    link->pausing = pausing;
    link->queue_up = send;
    link->is_plain = 0;
    sim_own(link->sim, &pausing->node);
    return pausing;
}

static void ingress_free(struct sim_node *node) { free(node); }

struct sim_ingress *sa_sim_ingress(struct sim_pausing *link, struct sim_pausing *reverse, uint64_t room_bytes) {
    struct sim_ingress *ingress = calloc(1, sizeof *ingress);
    if (!ingress) return NULL;
    ingress->node.free = ingress_free;
    ingress->link = link;
    ingress->reverse = reverse;
    ingress->room_bytes = room_bytes;
    ingress->act = link->link->lane.act;
    ingress->object = link->link->lane.object;
    for (uint32_t kind = 0; kind < SIM_CLASSES; kind++)
        for (uint32_t on = 0; on < 2; on++) ingress->signals[kind][on] = (struct sim_signal){link, kind, on};
    sim_link_lead_to(link->link, arrived, ingress, NULL);
    sim_own(link->link->sim, &ingress->node);
    return ingress;
}
