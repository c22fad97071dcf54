#include "emulation/sim/native/forward.h"

#include "emulation/sim/native/partitions.h"

#include <stdlib.h>
#include <string.h>

#define CHOICES_FIRST 64u
#define PORTS_FIRST 64u

/* ---- several links on the way to one address */

static struct sim_choice *choice_at(const struct sim_paths *paths, uint64_t ends, uint32_t flow) {
    uint64_t hash = (ends * 0x9e3779b97f4a7c15ull ^ flow) * 0x9e3779b97f4a7c15ull;
    uint32_t at = (uint32_t)(hash >> 40) & (paths->room - 1);
    while (paths->choices[at].ends && (paths->choices[at].ends != ends || paths->choices[at].flow != flow))
        at = (at + 1) & (paths->room - 1);
    return &paths->choices[at];
}

static int choices_grow(struct sim_paths *paths) {
    struct sim_paths larger = *paths;
    larger.room = paths->room ? 2 * paths->room : CHOICES_FIRST;
    larger.choices = calloc(larger.room, sizeof *larger.choices);
    if (!larger.choices) return -1;
    for (uint32_t i = 0; i < paths->room; i++)
        if (paths->choices[i].ends)
            *choice_at(&larger, paths->choices[i].ends, paths->choices[i].flow) = paths->choices[i];
    free(paths->choices);
    *paths = larger;
    return 0;
}

static struct sim_link *hashed(struct sim_paths *paths, uint32_t sender, uint32_t to, uint32_t flow) {
    if (2 * paths->chosen >= paths->room && choices_grow(paths)) return NULL;
    uint64_t ends = ((uint64_t)sender << 32 | to) + 1;
    struct sim_choice *choice = choice_at(paths, ends, flow);
    if (!choice->ends) {
        *choice = (struct sim_choice){ends, flow, paths->choose(paths->number, sender, to, flow)};
        paths->chosen++;
    }
    return paths->links[choice->place];
}

/* Returns the link with the shortest queue; equal ones take turns. */
static struct sim_link *sprayed(struct sim_paths *paths, int64_t ready_ns) {
    uint32_t first = paths->turn, best = first;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < paths->count && least; i++) {
        uint32_t at = (first + i) % paths->count;
        uint64_t backlog = sim_link_backlog_bytes(paths->links[at], ready_ns);
        if (backlog < least) {
            least = backlog;
            best = at;
        }
    }
    paths->turn = (first + 1) % paths->count;
    return paths->links[best];
}

static void send(struct sim_switch *at, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to) {
    const struct sim_port *port = &at->ports[to & SIM_NODE_MASK];
    struct sim_link *link = port->link;
    if (!link)
        link = port->paths->choose ? hashed(port->paths, sender, to & SIM_NODE_MASK, body->flow)
                                   : sprayed(port->paths, ready_ns);
    if (!link) {
        at->sim->queue.lacking = 1;
        return;
    }
    sim_link_send(link, body, ready_ns, sender, to);
}

/* ---- what is for the switch itself */

void sim_switch_send(struct sim_switch *at, struct sim_body *body, uint32_t length, const uint32_t *ports,
                     uint32_t port_count, uint32_t bits) {
    body->length = length;
    body->wire_bytes = length + SIM_UDP_FRAMING_BYTES;
    body->held = at->sim->size_only ? SA_HEADER_BYTES : length;
    body->holders = port_count;
    int64_t ready_ns = at->sim->now_ns + at->latency_ns;
    for (uint32_t i = 0; i < port_count; i++) send(at, body, ready_ns, at->address, ports[i] | bits);
}

static void send_results(struct sim_switch *at, struct sim_body **spare, const struct sa_targets *targets,
                         uint32_t length, uint32_t bits) {
    if (!targets->count) return;
    struct sim_body *body = *spare;
    *spare = NULL;
    sim_switch_send(at, body, length, targets->ports, targets->count, bits);
}

/* G2: a contribution's mark goes into its header. */
static void take_mark(struct sa_sim *sim, struct sim_body **body, uint32_t *to) {
    if (!(*to & SIM_CE) || (*body)->length < SA_HEADER_BYTES || (*body)->data[3] & SA_RESULT) return;
    struct sim_body *copy = sim_body_own(&sim->pool, *body);
    if (!copy) {
        sim->queue.lacking = 1;
        return;
    }
    copy->data[offsetof(struct sa_header, rank)] |= SA_MARKED;
    *body = copy;
    *to &= ~SIM_CE;
}

static void process(struct sim_switch *at, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sa_sim *sim = at->sim;
    if (sim_body_is_broken(body)) {
        at->drop_checksum++;
        sim_body_let_go(&sim->pool, body);
        return;
    }
    take_mark(sim, &body, &to);
    if (at->program) {
        at->program->receive(at->program, body, sender, to);
        return;
    }
    if (!at->valued) at->valued = sim_body(sim, sim->size_only ? SA_HEADER_BYTES : at->room_bytes);
    if (!at->header_only) at->header_only = sim_body(sim, SA_HEADER_BYTES);
    if (at->valued && at->header_only) {
        struct sa_results results;
        enum sa_outcome outcome =
            sa_plane_accept(at->plane, body->data, body->length, sender, at->valued->data, at->header_only->data, &results);
        if (sa_sends(outcome)) { /* a result has the class of the frame that caused it (S6), and its ECN bits (G4) */
            uint32_t bits = to & ~SIM_NODE_MASK;
            send_results(at, &at->valued, &results.valued, results.size, bits);
            send_results(at, &at->header_only, &results.header_only, SA_HEADER_BYTES, bits);
        }
    }
    sim_body_let_go(&sim->pool, body);
}

static void receive(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_switch *at = object;
    if ((to & SIM_NODE_MASK) == at->address && (at->plane || at->program))
        process(at, body, sender, to);
    else
        send(at, body, at->sim->now_ns + at->latency_ns, sender, to);
}

static void look(void *object, const struct sim_entry *entry, uint32_t step) {
    const struct sim_switch *at = object;
    uint32_t address = entry->to & SIM_NODE_MASK;
    if (address >= at->port_count) return;
    const struct sim_port *port = &at->ports[address];
    if (step == 0)
        __builtin_prefetch(port);
    else if (port->link && step == 1)
        sim_link_look(port->link);
    else if (port->link)
        sim_link_look_at_place(port->link);
}

static inline struct sim_node *node_at(const struct sa_sim *sim, uint32_t address) {
    const struct sim_partitions *all = sim->all;
    return address < all->node_count ? all->nodes[address] : NULL;
}

static void look_at_host(void *object, const struct sim_entry *entry, uint32_t step) {
    struct sim_node *node = node_at(object, entry->to & SIM_NODE_MASK);
    if (!node) return;
    if (step == 0)
        for (uint32_t at = 0; at < SIM_LOOK_BYTES; at += 64) __builtin_prefetch((const char *)node + at);
    else if (node->look)
        node->look(node, entry, step);
}

/* Does the same at a link to hosts. */
static void hand_over(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sa_sim *sim = object;
    uint32_t address = to & SIM_NODE_MASK;
    struct sim_node *node = node_at(sim, address);
    if (body->kind && body->kind->is_for_python) node = sim->all->python;
    if (node) {
        node->receive(node, body, sender, to);
        return;
    }
    sim->stray = address + 1; /* nobody is attached there */
    sim->stopped = 1;
    sim_body_let_go(&sim->pool, body);
}

/* ---- building */

struct sim_link *sa_sim_link(struct sa_sim *sim, const struct sim_link_facts *facts) {
    return sim_link_new(sim, facts);
}

void sa_sim_lead_to(struct sim_link *link, struct sim_switch *to) {
    struct sa_sim *end = to ? to->sim : link->sim;
    if (!link->end) sim_link_end_in(link, end);
    if (to) {
        sim_link_lead_to(link, receive, to, look);
        return;
    }
    struct sim_partitions *all = end->all;
    sim_link_lead_to(link, hand_over, end, look_at_host);
    if (link->rate_bps > all->host_rate_bps) all->host_rate_bps = link->rate_bps;
    if (link->random && link->random->span_ns > all->spread_ns) all->spread_ns = link->random->span_ns;
}

void sa_sim_cut(struct sim_link *link, uint32_t is_cut) { sim_link_cut(link, is_cut); }

static void switch_free(struct sim_node *node) {
    free(((struct sim_switch *)node)->ports);
    free(node);
}

struct sim_switch *sa_sim_switch(struct sa_sim *sim, int64_t latency_ns) {
    struct sim_switch *node = calloc(1, sizeof *node);
    if (!node) return NULL;
    node->node.free = switch_free;
    node->sim = sim;
    node->latency_ns = latency_ns;
    node->address = SIM_NODE_MASK;
    sim_own(sim, &node->node);
    return node;
}

static void paths_free(struct sim_node *node) {
    struct sim_paths *paths = (struct sim_paths *)node;
    free(paths->links);
    free(paths->choices);
    free(paths);
}

struct sim_paths *sa_sim_paths(struct sa_sim *sim, struct sim_link *const *links, uint32_t count, sim_choose choose,
                               uint32_t number) {
    struct sim_paths *paths = calloc(1, sizeof *paths);
    if (!paths) return NULL;
    paths->node.free = paths_free;
    sim_own(sim, &paths->node);
    paths->links = malloc(count * sizeof *links);
    if (!paths->links) return NULL;
    memcpy(paths->links, links, count * sizeof *links);
    paths->count = count;
    paths->choose = choose;
    if (choose) sim->all->in_turn = 1;
    paths->number = number;
    return paths;
}

int sa_sim_route(struct sim_switch *at, struct sim_link *link, struct sim_paths *paths) {
    if (at->port_count == at->port_room) {
        uint32_t room = at->port_room ? 2 * at->port_room : PORTS_FIRST;
        struct sim_port *ports = realloc(at->ports, room * sizeof *ports);
        if (!ports) return -1;
        at->ports = ports;
        at->port_room = room;
    }
    at->ports[at->port_count++] = (struct sim_port){link, paths};
    return 0;
}

void sa_sim_aggregate(struct sim_switch *at, struct sa_plane *plane, uint32_t address, uint32_t room_bytes) {
    at->plane = plane;
    at->address = address;
    at->room_bytes = room_bytes;
}
