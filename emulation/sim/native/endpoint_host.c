#include "emulation/sim/native/endpoint_host.h"

#include <stdlib.h>
#include <string.h>

#include "switchagg/native/rule/wire.h"

#define TREES_MAX 64u

/* Bodies for the frames that endpoints are asked for, of which mostly few come; for all workers with frames of one size. */
struct spares {
    struct sim_node node; /* only to be owned */
    uint32_t room_bytes, count;
    struct sim_body **bodies;
    uint8_t **places;
};

struct sim_worker {
    struct sim_node node;
    struct sa_sim *sim;
    struct sim_link *link;
    uint32_t address, number, frame_bytes;
    uint32_t tree_count, class_count, uplink_count;
    uint64_t drop_checksum;
    struct sim_tree trees[TREES_MAX];
    uint8_t turns[TREES_MAX];
    uint32_t classes[SIM_CLASSES];
    struct sim_uplink uplinks[SIM_CLASSES];
    struct sim_alarm alarm, paced;
    uint64_t flow_bps; /* 0: as fast as its link */
    struct sim_pace pace;
    struct spares *spares;
};

static void spares_free(struct sim_node *node) {
    struct spares *spares = (struct spares *)node;
    free(spares->bodies);
    free(spares->places);
    free(spares);
}

static struct spares *spares_of(struct sa_sim *sim, uint32_t room_bytes) {
    for (struct sim_node *node = sim->owned; node; node = node->next)
        if (node->free == spares_free && ((struct spares *)node)->room_bytes == room_bytes) return (struct spares *)node;
    struct spares *spares = calloc(1, sizeof *spares);
    if (!spares) return NULL;
    spares->node.free = spares_free;
    spares->room_bytes = room_bytes;
    sim_own(sim, &spares->node);
    return spares;
}

/* At least so many; 0, or -1: no memory. */
static int keep_spares(struct sa_sim *sim, struct spares *spares, uint32_t count) {
    if (count <= spares->count) return 0;
    struct sim_body **bodies = realloc(spares->bodies, count * sizeof *bodies);
    if (bodies) spares->bodies = bodies;
    uint8_t **places = bodies ? realloc(spares->places, count * sizeof *places) : NULL;
    if (places) spares->places = places;
    for (; places && spares->count < count; spares->count++) {
        struct sim_body *body = sim_body(sim, sim->size_only ? SA_HEADER_BYTES : spares->room_bytes);
        if (!body) return -1;
        spares->bodies[spares->count] = body;
        spares->places[spares->count] = body->data;
    }
    return places ? 0 : -1;
}

/* ---- sending */

/* Frames of one tree: of those with the most urgent class, which take turns, the next that has any. */
static uint32_t frames_of_any(struct sim_worker *worker, uint32_t limit, uint32_t kind, uint32_t *size,
                              const struct sim_tree **from) {
    uint32_t classes = kind == SIM_ALL_CLASSES ? worker->class_count : 1;
    for (uint32_t i = 0; i < classes; i++)
        for (uint32_t turn = 0; turn < worker->tree_count; turn++) {
            uint8_t tree = worker->turns[turn];
            *from = &worker->trees[tree];
            uint32_t count =
                sa_endpoint_frames_at((*from)->endpoint, worker->sim->now_ns, limit,
                                      kind == SIM_ALL_CLASSES ? worker->classes[i] : kind, worker->spares->places, size);
            if (!count) continue;
            memmove(&worker->turns[turn], &worker->turns[turn + 1], worker->tree_count - turn - 1);
            worker->turns[worker->tree_count - 1] = tree;
            return count;
        }
    return 0;
}

static uint32_t frames(struct sim_worker *worker, uint32_t limit, uint32_t kind, uint32_t *size,
                       const struct sim_tree **from) {
    if (!limit) return 0;
    if (worker->tree_count > 1) return frames_of_any(worker, limit, kind, size, from);
    *from = worker->trees;
    return sa_endpoint_frames_at(worker->trees->endpoint, worker->sim->now_ns, limit, kind, worker->spares->places, size);
}

static int64_t next_deadline_ns(const struct sim_worker *worker) {
    int64_t first_ns = -1;
    for (uint32_t tree = 0; tree < worker->tree_count; tree++) {
        int64_t deadline_ns = sa_endpoint_next_deadline_ns(worker->trees[tree].endpoint);
        if (deadline_ns >= 0 && (first_ns < 0 || deadline_ns < first_ns)) first_ns = deadline_ns;
    }
    return first_ns;
}

static uint32_t give(void *host, uint32_t limit, uint32_t kind) {
    struct sim_worker *worker = host;
    struct sa_sim *sim = worker->sim;
    struct spares *spares = worker->spares;
    const struct sim_tree *from;
    struct sim_pace *pace = worker->flow_bps ? &worker->pace : NULL;
    uint32_t count = 0, size, more;
    if (pace && limit) limit = sim_pace_next_ns(pace) <= sim->now_ns;
    if (keep_spares(sim, spares, limit)) {
        sim->queue.lacking = 1;
        return 0;
    }
    while ((more = frames(worker, limit - count, kind, &size, &from))) {
        for (uint32_t i = 0; i < more; i++) {
            struct sim_body *body = spares->bodies[i], *next = sim_body(sim, sim->size_only ? SA_HEADER_BYTES : spares->room_bytes);
            if (!next) return count;
            spares->bodies[i] = next;
            spares->places[i] = next->data;
            body->length = size;
            body->wire_bytes = size + SIM_UDP_FRAMING_BYTES;
            body->held = sim->size_only ? SA_HEADER_BYTES : size;
            uint32_t stream = body->data[offsetof(struct sa_header, stream)];
            sim_link_send(worker->link, body, sim->now_ns, worker->address, from->to[stream]);
            if (pace) sim_pace_left(pace, worker->flow_bps, sim->now_ns, size + SIM_UDP_FRAMING_BYTES);
        }
        count += more;
    }
    if (pace && sim_pace_next_ns(pace) > sim->now_ns) sim_alarm_set(&worker->paced, sim_pace_next_ns(pace));
    if (count) sim_alarm_set(&worker->alarm, next_deadline_ns(worker));
    return count;
}

void sa_sim_worker_pump(struct sim_worker *worker) {
    for (uint32_t i = 0; i < worker->uplink_count; i++) sim_uplink_pump(&worker->uplinks[i]);
}

/* ---- receiving */

/* Let Python see what has ended; 0: the run has failed. */
static int tell(struct sim_worker *worker) {
    for (uint32_t tree = 0; tree < worker->tree_count; tree++)
        if (sa_endpoint_has_event(worker->trees[tree].endpoint)) {
            return sim_notice(worker->sim, worker->number);
        }
    return 1;
}

static void receive(struct sim_node *node, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_worker *worker = (struct sim_worker *)node;
    (void)sender;
    if (sim_body_is_broken(body)) {
        worker->drop_checksum++;
        sim_body_let_go(&worker->sim->pool, body);
        return;
    }
    const struct sim_tree *tree = worker->trees;
    if (worker->tree_count > 1) {
        uint32_t job_id = (uint32_t)body->data[4] << 8 | body->data[5];
        for (uint32_t i = 1; i < worker->tree_count; i++)
            if (worker->trees[i].job_id == job_id) tree = &worker->trees[i];
    }
    sa_endpoint_receive(tree->endpoint, body->data, 1, body->length, worker->sim->now_ns, (to & SIM_CE) != 0);
    sim_body_let_go(&worker->sim->pool, body);
    if (tell(worker)) sa_sim_worker_pump(worker);
}

static void ring(void *host) {
    struct sim_worker *worker = host;
    for (uint32_t tree = 0; tree < worker->tree_count; tree++)
        sa_endpoint_handle_timer(worker->trees[tree].endpoint, worker->sim->now_ns);
    if (!tell(worker)) return;
    sa_sim_worker_pump(worker);
    sim_alarm_set(&worker->alarm, next_deadline_ns(worker));
}

/* A call can't end before the results that it lacks have come, of which one frame is on its way. */
static int64_t quiet_ns(const struct sim_node *node, int64_t now_ns, uint64_t rate_bps) {
    const struct sim_worker *worker = (const struct sim_worker *)node;
    int64_t first_ns = INT64_MAX;
    for (uint32_t tree = 0; tree < worker->tree_count; tree++) {
        uint32_t bytes;
        uint64_t results = sa_endpoint_lacks(worker->trees[tree].endpoint, &bytes);
        if (results == UINT64_MAX) continue;
        if (results <= 1) return now_ns;
        int64_t ns = (int64_t)((sim_units)(results - 1) * (bytes + SIM_UDP_FRAMING_BYTES) * SIM_UNITS / rate_bps);
        if (ns < first_ns) first_ns = ns;
    }
    return first_ns == INT64_MAX ? first_ns : now_ns + first_ns;
}

/* ---- building */

static void worker_free(struct sim_node *node) {
    struct sim_worker *worker = (struct sim_worker *)node;
    for (uint32_t i = 0; i < worker->uplink_count; i++) sim_uplink_end(&worker->uplinks[i]);
    for (uint32_t tree = 0; tree < worker->tree_count; tree++) free((void *)(uintptr_t)worker->trees[tree].to);
    free(worker);
}

struct sim_worker *sa_sim_worker(struct sa_sim *sim, struct sim_link *link, uint32_t address, uint32_t number,
                                 const struct sim_tree *trees, uint32_t tree_count, const uint32_t *classes,
                                 uint32_t class_count, uint32_t by_class) {
    struct sim_worker *worker = calloc(1, sizeof *worker);
    if (!worker || tree_count > TREES_MAX || class_count > SIM_CLASSES) {
        free(worker);
        return NULL;
    }
    worker->node = (struct sim_node){receive, worker_free, NULL, NULL, quiet_ns};
    sim_own(sim, &worker->node);
    worker->sim = sim;
    worker->link = link;
    worker->address = address;
    worker->number = number;
    uint32_t frame_bytes = sa_endpoint_frame_bytes(trees->endpoint);
    if (!(worker->spares = spares_of(sim, frame_bytes))) return NULL;
    for (; worker->tree_count < tree_count; worker->tree_count++) {
        const struct sim_tree *tree = &trees[worker->tree_count];
        uint32_t *to = malloc(tree->streams * sizeof *to);
        if (!to) return NULL;
        memcpy(to, tree->to, tree->streams * sizeof *to);
        worker->trees[worker->tree_count] = *tree;
        worker->trees[worker->tree_count].to = to;
        worker->turns[worker->tree_count] = (uint8_t)worker->tree_count;
    }
    memcpy(worker->classes, classes, class_count * sizeof *classes);
    worker->class_count = class_count;
    worker->uplink_count = by_class ? class_count : 1;
    for (uint32_t i = 0; i < worker->uplink_count; i++)
        sim_uplink_init(&worker->uplinks[i], link, by_class ? classes[i] : SIM_ALL_CLASSES,
                        frame_bytes + SIM_UDP_FRAMING_BYTES, give, worker);
    sim_alarm_init(&worker->alarm, sim, ring, worker);
    return sim_attach(sim, address, &worker->node) ? NULL : worker;
}

void sa_sim_worker_readmit(struct sim_worker *worker, struct sa_endpoint *const *endpoints) {
    for (uint32_t tree = 0; tree < worker->tree_count; tree++) {
        worker->trees[tree].endpoint = endpoints[tree];
        worker->turns[tree] = (uint8_t)tree;
    }
}

static void pump(void *host) { sa_sim_worker_pump(host); }

void sa_sim_worker_pace(struct sim_worker *worker, uint64_t flow_bps) {
    worker->flow_bps = flow_bps;
    sim_alarm_init(&worker->paced, worker->sim, pump, worker);
}

uint64_t sa_sim_worker_drop_checksum(const struct sim_worker *worker) { return worker->drop_checksum; }
