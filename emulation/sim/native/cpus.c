#include "emulation/sim/native/cpus.h"

#include <stdlib.h>

#define FRAMES_FIRST 64u

struct sim_cpus {
    struct sim_node node; /* only to be owned */
    struct sa_sim *sim;
    uint32_t idle; /* CPUs; UINT32_MAX: one for each program */
    int64_t wake_ns;
    uint64_t wakes;
    struct sim_program *first, **end; /* those that wait for a CPU */
};

/* A frame, and where its link leads. */
struct sim_come {
    struct sim_arrival arrival;
    struct sim_body *body;
    uint32_t sender, to;
};

struct sim_program {
    struct sim_node node; /* only to be owned */
    struct sim_cpus *cpus;
    struct sim_switch *at;
    struct sim_program *next;
    struct sim_come *frames; /* a ring of `room` places */
    uint32_t first, count, room;
    uint32_t is_busy; /* it waits for a CPU, or has one */
    int64_t packet_ns;
    uint64_t counted; /* frames sent that are known */
    int64_t owed_ns;  /* of these, and for waking, and not yet had */
    const struct sim_link **links;
    uint32_t link_count;
};

struct sim_entrance {
    struct sim_node node; /* only to be owned */
    struct sim_program *program;
    struct sim_arrival arrival;
};

static uint64_t sent(const struct sim_program *program) {
    uint64_t frames = 0;
    for (uint32_t i = 0; i < program->link_count; i++) frames += program->links[i]->sent_frames;
    return frames;
}

static void count(struct sim_program *program) {
    uint64_t frames = sent(program);
    program->owed_ns += (int64_t)(frames - program->counted) * program->packet_ns;
    program->counted = frames;
}

static void handle(void *object, struct sim_body *body, uint32_t sender, uint32_t to);

static void go_on(struct sim_cpus *cpus) {
    while (cpus->idle && cpus->first) {
        struct sim_program *program = cpus->first;
        if (!(cpus->first = program->next)) cpus->end = &cpus->first;
        if (cpus->idle != UINT32_MAX) cpus->idle--;
        if (!program->at) count(program); /* timers send, too */
        const struct sim_come *come = program->count ? &program->frames[program->first] : NULL;
        int64_t takes_ns = program->owed_ns + (come ? program->packet_ns : 0);
        program->owed_ns = 0;
        sim_queue_other(&cpus->sim->queue, cpus->sim->now_ns + takes_ns, handle, program, come ? come->body : NULL,
                        come ? come->sender : 0, come ? come->to : 0);
    }
}

static void take_turn(struct sim_program *program) {
    struct sim_cpus *cpus = program->cpus;
    program->next = NULL;
    *cpus->end = program;
    cpus->end = &program->next;
    go_on(cpus);
}

/* A packet has had its time. */
static void handle(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_program *program = object;
    struct sim_cpus *cpus = program->cpus;
    if (body) {
        struct sim_arrival arrival = program->frames[program->first].arrival;
        program->first = (program->first + 1) & (program->room - 1);
        program->count--;
        if (program->at) program->counted = sent(program); /* what it only forwarded is not the program's */
        arrival.act(arrival.object, body, sender, to);
        count(program);
    }
    if (cpus->idle != UINT32_MAX) cpus->idle++;
    program->is_busy = program->count || program->owed_ns;
    if (program->is_busy)
        take_turn(program);
    else
        go_on(cpus);
}

static int has_room(struct sim_program *program) {
    if (program->count < program->room) return 1;
    uint32_t room = program->room ? 2 * program->room : FRAMES_FIRST;
    struct sim_come *frames = malloc(room * sizeof *frames);
    if (!frames) return 0;
    for (uint32_t i = 0; i < program->count; i++)
        frames[i] = program->frames[(program->first + i) & (program->room - 1)];
    free(program->frames);
    program->frames = frames;
    program->first = 0;
    program->room = room;
    return 1;
}

static void enter(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    const struct sim_entrance *entrance = object;
    struct sim_program *program = entrance->program;
    if (program->at && (to & SIM_NODE_MASK) != program->at->address) {
        entrance->arrival.act(entrance->arrival.object, body, sender, to);
        return;
    }
    if (!has_room(program)) {
        program->cpus->sim->queue.lacking = 1;
        sim_body_let_go(&program->cpus->sim->pool, body);
        return;
    }
    program->frames[(program->first + program->count++) & (program->room - 1)] =
        (struct sim_come){entrance->arrival, body, sender, to};
    if (program->is_busy) return;
    program->is_busy = 1;
    program->owed_ns += program->cpus->wake_ns;
    program->cpus->wakes++;
    take_turn(program);
}

/* ---- building */

static void node_free(struct sim_node *node) { free(node); }

static void program_free(struct sim_node *node) {
    struct sim_program *program = (struct sim_program *)node;
    free(program->frames);
    free(program->links);
    free(program);
}

struct sim_cpus *sa_sim_cpus(struct sa_sim *sim, uint32_t count, int64_t wake_ns) {
    struct sim_cpus *cpus = calloc(1, sizeof *cpus);
    if (!cpus) return NULL;
    *cpus = (struct sim_cpus){.node.free = node_free, .sim = sim, .idle = count ? count : UINT32_MAX, .wake_ns = wake_ns};
    cpus->end = &cpus->first;
    sim_own(sim, &cpus->node);
    return cpus;
}

struct sim_program *sa_sim_program_on(struct sim_cpus *cpus, struct sim_switch *at, int64_t packet_ns) {
    struct sim_program *program = calloc(1, sizeof *program);
    if (!program) return NULL;
    *program = (struct sim_program){.node.free = program_free, .cpus = cpus, .at = at, .packet_ns = packet_ns};
    sim_own(cpus->sim, &program->node);
    return program;
}

int sa_sim_program_sends(struct sim_program *program, const struct sim_link *link) {
    const struct sim_link **links = realloc(program->links, (program->link_count + 1) * sizeof *links);
    if (!links) return -1;
    program->links = links;
    links[program->link_count++] = link;
    return 0;
}

int sa_sim_program_takes(struct sim_program *program, struct sim_link *link) {
    struct sim_entrance *entrance = calloc(1, sizeof *entrance);
    if (!entrance) return -1;
    *entrance = (struct sim_entrance){.node.free = node_free, .program = program,
                                      .arrival = {link->lane.act, link->lane.object, link->lane.look}};
    sim_own(program->cpus->sim, &entrance->node);
    sim_link_lead_to(link, enter, entrance, NULL);
    return 0;
}

uint64_t sa_sim_wakes(const struct sim_cpus *cpus) { return cpus->wakes; }
