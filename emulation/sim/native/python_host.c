#include "emulation/sim/native/python_host.h"

#include <stdlib.h>

#define FRAMES_FIRST 256u

/* The body of a frame has this behind its head. */
struct frame {
    struct sim_python *python;
    uint32_t number, crc;
};

static struct frame *frame_of(const struct sim_body *body) { return (struct frame *)(uintptr_t)(body + 1); }

static uint32_t digest(const struct sim_body *body) { return frame_of(body)->crc; }

static void copied(struct sim_body *body) {
    const struct frame *frame = frame_of(body);
    frame->python->bodies[frame->number]++;
}

static void let_go(const struct frame *frame) {
    struct sim_python *python = frame->python;
    if (--python->bodies[frame->number] == 0) python->idle[python->idle_count++] = frame->number;
}

static void end(struct sim_body *body) { let_go(frame_of(body)); }

/* The number of a frame with one body; there is a next one, too. Returns 0, or -1 without memory. */
static int take(struct sim_python *python, uint32_t *number) {
    if (python->count == python->room) {
        uint32_t room = python->room ? 2 * python->room : FRAMES_FIRST;
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

static void damage(struct sim_body *body, uint16_t burst, uint32_t first_bit) {
    struct frame *frame = frame_of(body), original = *frame;
    if (take(frame->python, &frame->number)) {
        frame->python->sim->queue.lacking = 1;
        return;
    }
    frame->crc = frame->python->damage(original.number, frame->number, burst, first_bit);
    let_go(&original);
}

static const struct sim_body_kind FRAME = {.digest = digest, .copied = copied, .end = end, .damage = damage},
                                  BODILESS = {.digest = digest, .copied = copied, .end = end, .damage = damage,
                                              .is_bodiless = 1};

static void receive(struct sim_node *node, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_python *python = (struct sim_python *)node;
    if (body->kind == &FRAME || body->kind == &BODILESS) {
        python->arrive(frame_of(body)->number, sender, to);
    } else { /* of a host in C, which sends to none in Python */
        python->sim->stray = (to & SIM_NODE_MASK) + 1;
        python->sim->stopped = 1;
    }
    sim_body_let_go(&python->sim->pool, body);
}

int sa_sim_python_send(struct sim_python *python, struct sim_link *link, uint32_t how, uint32_t length,
                       uint32_t wire_bytes, uint32_t flow, uint32_t crc, int64_t ready_ns, uint32_t sender,
                       uint32_t to) {
    uint32_t room = (uint32_t)(sizeof(struct sim_body) - offsetof(struct sim_body, data) + sizeof(struct frame));
    struct sim_body *body = sim_body(python->sim, room);
    if (!body) return -1;
    struct frame *frame = frame_of(body);
    *frame = (struct frame){.python = python, .crc = crc};
    if (take(python, &frame->number)) return -1;
    body->kind = how & SIM_PYTHON_BODILESS ? &BODILESS : &FRAME;
    body->held = room;
    body->length = length;
    body->wire_bytes = wire_bytes;
    body->flow = flow;
    return how & SIM_PYTHON_AHEAD ? sim_link_send_ahead(link, body, ready_ns, sender, to)
                                  : sim_link_send(link, body, ready_ns, sender, to);
}

uint64_t sa_sim_backlog_bytes(const struct sim_link *link, int64_t now_ns) {
    return sim_link_backlog_bytes(link, now_ns);
}

uint64_t sa_sim_backlog_of(const struct sim_link *link, uint32_t kind) { return sim_link_backlog_of(link, kind); }

int64_t sa_sim_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes) {
    return sim_link_time_at_backlog_ns(link, size_bytes);
}

uint32_t sa_sim_attached(const struct sa_sim *sim, uint32_t address) {
    return address < sim->node_count && sim->nodes[address] != NULL;
}

int sa_sim_python_at(struct sim_python *python, uint32_t address) {
    return sim_attach(python->sim, address, &python->node);
}

static void python_free(struct sim_node *node) {
    struct sim_python *python = (struct sim_python *)node;
    free(python->bodies);
    free(python->idle);
    free(python);
}

struct sim_python *sa_sim_python(struct sa_sim *sim, void (*arrive)(uint32_t frame, uint32_t sender, uint32_t to),
                                 uint32_t (*damage_of)(uint32_t frame, uint32_t as, uint32_t burst,
                                                       uint32_t first_bit)) {
    struct sim_python *python = calloc(1, sizeof *python);
    if (!python) return NULL;
    python->node = (struct sim_node){.receive = receive, .free = python_free};
    python->sim = sim;
    python->arrive = arrive;
    python->damage = damage_of;
    sim_own(sim, &python->node);
    return python;
}
