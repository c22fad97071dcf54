#include "emulation/sim/native/python_host.h"

#include <stdlib.h>
#include <string.h>

#include "emulation/sim/native/partitions.h"
#include "emulation/sim/native/pausing.h"
#include "transport/native/roce/roce_crc.h"

#define OBJECTS_FIRST 256u

/* The body of an object has this behind its head. */
struct object {
    struct sim_python *python;
    uint32_t number, crc;
};

static struct object *object_of(const struct sim_body *body) { return (struct object *)(uintptr_t)(body + 1); }

static uint32_t digest(const struct sim_body *body) { return object_of(body)->crc; }

static uint32_t digest_of_bytes(const struct sim_body *body) { return sa_crc32(0, body->data, body->length); }

static void copied(struct sim_body *body) {
    const struct object *object = object_of(body);
    object->python->bodies[object->number]++;
}

static void let_go(const struct object *object) {
    struct sim_python *python = object->python;
    if (--python->bodies[object->number] == 0) python->idle[python->idle_count++] = object->number;
}

static void end(struct sim_body *body) { let_go(object_of(body)); }

/* The number of an object with one body; there is a next one, too. Returns 0, or -1 without memory. */
static int take(struct sim_python *python, uint32_t *number) {
    if (python->count == python->room) {
        uint32_t room = python->room ? 2 * python->room : OBJECTS_FIRST;
        uint32_t *bodies = realloc(python->bodies, room * sizeof *bodies);
        if (bodies) python->bodies = bodies;
        uint32_t *idle = bodies ? realloc(python->idle, room * sizeof *idle) : NULL;
        if (!idle) return -1;
        python->idle = idle;
        python->room = room;
        if (!python->count) python->count = 1; /* `next` has number 0 */
    }
    *number = python->next;
    python->bodies[*number] = 1;
    python->next = python->idle_count ? python->idle[--python->idle_count] : python->count++;
    return 0;
}

static void damage(struct sim_body *body) {
    struct object *object = object_of(body), original = *object;
    if (take(object->python, &object->number)) {
        object->python->sim->queue.lacking = 1;
        return;
    }
    object->python->damage(original.number, object->number);
    let_go(&original);
}

static const struct sim_body_kind
    OBJECT = {.digest = digest, .copied = copied, .end = end, .damage = damage, .is_for_python = 1},
    BYTES = {.digest = digest_of_bytes, .has_bytes = 1, .is_for_python = 1};

static void receive(struct sim_node *node, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_python *python = (struct sim_python *)node;
    sim_before_python(python->sim->all->each[python->sim->all->current]);
    if (body->kind == &OBJECT) {
        python->arrive(object_of(body)->number, sender, to);
    } else if (!body->kind || body->kind == &BYTES) {
        const uint8_t *data = sim_body_is_broken(body) ? NULL : body->data;
        python->arrive_bytes(!body->kind, data, body->length, sender, to);
    } else { /* of a host in C whose peers are all in C */
        python->sim->stray = (to & SIM_NODE_MASK) + 1;
        python->sim->stopped = 1;
    }
    sim_body_let_go(&python->sim->pool, body);
}

static int queue(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to) {
    link->sim->all->in_turn = 1;
    return sim_link_send(link, body, ready_ns, sender, to);
}

int sa_sim_send_object(struct sim_python *python, struct sim_link *link, uint32_t length, uint32_t wire_bytes,
                       uint32_t flow, uint32_t crc, struct sim_charge *charge, int64_t ready_ns, uint32_t sender,
                       uint32_t to) {
    uint32_t room = (uint32_t)(sizeof(struct sim_body) - offsetof(struct sim_body, data) + sizeof(struct object));
    struct sim_body *body = sim_body(python->sim, room);
    if (!body) return -1;
    struct object *object = object_of(body);
    *object = (struct object){.python = python, .crc = crc};
    if (take(python, &object->number)) return -1;
    body->kind = &OBJECT;
    body->held = room;
    body->length = length;
    body->wire_bytes = wire_bytes;
    body->flow = flow;
    if (!charge) return queue(link, body, ready_ns, sender, to);
    struct sim_charge *outer = sim_pausing_charge(link, charge);
    int accepted = queue(link, body, ready_ns, sender, to);
    sim_pausing_charge(link, outer);
    return accepted;
}

static struct sim_body *body_of(struct sa_sim *sim, const uint8_t *data, uint32_t length) {
    struct sim_body *body = sim_body(sim, length);
    if (!body) return NULL;
    memcpy(body->data, data, length);
    body->held = body->length = length;
    return body;
}

int sa_sim_send_bytes(struct sim_python *python, struct sim_link *link, uint32_t is_packet, const uint8_t *data,
                      uint32_t length, uint32_t wire_bytes, int64_t ready_ns, uint32_t sender, uint32_t to) {
    struct sim_body *body = body_of(python->sim, data, length);
    if (!body) return -1;
    body->kind = is_packet ? NULL : &BYTES;
    body->wire_bytes = wire_bytes;
    return queue(link, body, ready_ns, sender, to);
}

int sa_sim_send_results(struct sim_switch *at, const uint8_t *packets, uint32_t count, uint32_t length,
                        const uint32_t *ports, uint32_t port_count, uint32_t bits) {
    for (uint32_t i = 0; i < count && port_count; i++) {
        struct sim_body *body = body_of(at->sim, packets + (size_t)i * length, length);
        if (!body) return -1;
        sim_switch_send(at, body, length, ports, port_count, bits);
    }
    return 0;
}

void sa_sim_program(struct sim_switch *at, struct sim_python *python, uint32_t address) {
    at->program = python ? &python->node : NULL;
    if (python) at->sim->all->in_turn = 1;
    at->address = address;
}

uint64_t sa_sim_backlog_bytes(const struct sim_link *link, int64_t now_ns) {
    return sim_link_backlog_bytes(link, now_ns);
}

uint64_t sa_sim_backlog_of(const struct sim_link *link, uint32_t kind) { return sim_link_backlog_of(link, kind); }

int64_t sa_sim_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes) {
    return sim_link_time_at_backlog_ns(link, size_bytes);
}

int sa_sim_python_at(struct sim_python *python, uint32_t address) {
    struct sim_partitions *all = python->sim->all;
    if (address < all->node_count && all->nodes[address]) return 0; /* a host in C, whose own frames it takes */
    all->in_turn = 1;
    return sim_attach(python->sim, address, &python->node);
}

static void python_free(struct sim_node *node) {
    struct sim_python *python = (struct sim_python *)node;
    free(python->bodies);
    free(python->idle);
    free(python);
}

struct sim_python *sa_sim_python(struct sa_sim *sim, void (*arrive)(uint32_t object, uint32_t sender, uint32_t to),
                                 void (*damage_of)(uint32_t object, uint32_t as),
                                 void (*arrive_bytes)(uint32_t is_packet, const uint8_t *data, uint32_t length,
                                                      uint32_t sender, uint32_t to)) {
    struct sim_python *python = calloc(1, sizeof *python);
    if (!python) return NULL;
    python->node = (struct sim_node){.receive = receive, .free = python_free};
    python->sim = sim;
    python->arrive = arrive;
    python->damage = damage_of;
    python->arrive_bytes = arrive_bytes;
    sim->all->python = &python->node;
    sim_own(sim, &python->node);
    return python;
}
