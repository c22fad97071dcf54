#include "emulation/sim/native/sim.h"

#include <stdlib.h>

#include "transport/native/roce/roce_crc.h"

#define RECORDS_FIRST 4096u

/* An event of Python's own. */
struct planned {
    struct sa_sim *sim;
    uint64_t number, content;
};

void sim_own(struct sa_sim *sim, struct sim_node *node) {
    node->next = sim->owned;
    sim->owned = node;
}

int sim_attach(struct sa_sim *sim, uint32_t address, struct sim_node *node) {
    if (address >= sim->node_count) {
        uint32_t count = 2 * address + 64;
        struct sim_node **nodes = realloc(sim->nodes, count * sizeof *nodes);
        if (!nodes) return -1;
        for (uint32_t i = sim->node_count; i < count; i++) nodes[i] = NULL;
        sim->nodes = nodes;
        sim->node_count = count;
    }
    sim->nodes[address] = node;
    return 0;
}

struct sim_body *sim_body(struct sa_sim *sim, uint32_t room_bytes) {
    struct sim_body *body = sim_body_new(&sim->pool, room_bytes);
    if (!body) sim->queue.lacking = 1;
    return body;
}

struct sa_sim *sa_sim_new(uint32_t traced_bytes, void (*notice)(uint32_t host), void (*due)(uint64_t number)) {
    struct sa_sim *sim = calloc(1, sizeof *sim);
    if (!sim) return NULL;
    sim->traced_bytes = traced_bytes;
    sim->notice = notice;
    sim->due = due;
    return sim;
}

static void happen_planned(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    (void)body, (void)sender, (void)to;
    struct planned planned = *(struct planned *)object;
    free(object);
    planned.sim->due(planned.number);
}

void sa_sim_free(struct sa_sim *sim) {
    if (!sim) return;
    for (uint32_t i = 0; i < sim->queue.other_count; i++)
        if (sim->queue.heap[i].act == happen_planned) free(sim->queue.heap[i].object);
    for (struct sim_node *node = sim->owned, *next; node; node = next) {
        next = node->next;
        node->free(node);
    }
    sim_queue_free(&sim->queue);
    sim_pool_free(&sim->pool);
    free(sim->nodes);
    free(sim->records);
    free(sim);
}

int sa_sim_schedule(struct sa_sim *sim, int64_t time_ns, uint64_t number, uint32_t sender, uint32_t to,
                    uint64_t content) {
    struct planned *planned = malloc(sizeof *planned);
    if (!planned) return -1;
    *planned = (struct planned){sim, number, content};
    sim_schedule(sim, time_ns, happen_planned, planned, sender, to);
    return sim->queue.lacking ? -1 : 0;
}

uint32_t sa_sim_pending(const struct sa_sim *sim) { return !sim_queue_is_empty(&sim->queue); }

static void record(struct sa_sim *sim, const struct sim_event *event) {
    const struct sim_entry *entry = &event->entry;
    if (sim->record_count == sim->record_room) {
        uint64_t room = sim->record_room ? 2 * sim->record_room : RECORDS_FIRST;
        struct sim_record *records = realloc(sim->records, room * sizeof *records);
        if (!records) {
            sim->queue.lacking = 1;
            return;
        }
        sim->records = records;
        sim->record_room = room;
    }
    uint64_t content = 0;
    if (event->act == happen_planned) {
        content = ((const struct planned *)event->object)->content;
    } else if (entry->body) {
        const struct sim_body *body = entry->body;
        uint32_t bytes = body->held < sim->traced_bytes ? body->held : sim->traced_bytes;
        content = body->kind ? body->kind->digest(body) ^ body->flipped : sa_crc32(0, body->data, bytes);
    }
    sim->records[sim->record_count++] = (struct sim_record){entry->time_ns, entry->sender, entry->to, content};
}

uint32_t sa_sim_run(struct sa_sim *sim, uint64_t events) {
    struct sim_event event;
    uint64_t left = events;
    uint32_t end = SIM_UNFINISHED;
    sim->stopped = sim->failed = 0;
    for (; left && end == SIM_UNFINISHED; left--) {
        if (!sim_queue_next(&sim->queue, &event)) {
            end = SIM_NOTHING_LEFT;
            break;
        }
        sim->now_ns = event.entry.time_ns;
        sim->sequence = event.entry.sequence;
        if (sim->traced_bytes) record(sim, &event);
        event.act(event.object, event.entry.body, event.entry.sender, event.entry.to);
        if (sim->queue.lacking) end = SIM_NO_MEMORY;
        if (sim->stopped) end = SIM_STOPPED;
    }
    sim->events += events - left;
    return end;
}

uint64_t sa_sim_records(struct sa_sim *sim, const struct sim_record **records) {
    uint64_t count = sim->record_count;
    *records = sim->records;
    sim->record_count = 0;
    return count;
}
