#include "emulation/sim/native/partitions.h"

#include <stdlib.h>
#include <string.h>

#include "emulation/sim/native/message.h"
#include "emulation/sim/native/team.h"
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
    struct sim_partitions *all = sim->all;
    if (address >= all->node_count) {
        uint32_t count = 2 * address + 64;
        struct sim_node **nodes = realloc(all->nodes, count * sizeof *nodes);
        if (!nodes) return -1;
        for (uint32_t i = all->node_count; i < count; i++) nodes[i] = NULL;
        all->nodes = nodes;
        all->node_count = count;
    }
    all->nodes[address] = node;
    return 0;
}

struct sim_body *sim_body(struct sa_sim *sim, uint32_t room_bytes) {
    struct sim_body *body = sim_body_new(&sim->pool, room_bytes);
    if (!body) sim->queue.lacking = 1;
    return body;
}

int sim_notice(struct sa_sim *sim, uint32_t host) {
    struct sim_partitions *all = sim->all;
    if (all->in_window) {
        if (!sim->noticed) sim->noticed = host + 1;
        sim->stopped = 1;
        return 0;
    }
    sim_before_python(sim);
    all->notify(host);
    return !all->each[0]->failed;
}

struct sa_sim *sim_new(struct sim_partitions *all, uint32_t traced_bytes) {
    struct sa_sim *sim = aligned_alloc(_Alignof(struct sa_sim), sizeof *sim);
    if (!sim) return NULL;
    memset(sim, 0, sizeof *sim);
    sim->traced_bytes = traced_bytes;
    sim->all = all;
    sim->number = all->count++;
    sim->queue.sequence = (uint64_t)sim->number << SIM_SEQUENCE_BITS;
    return sim;
}

struct sa_sim *sa_sim_new(uint32_t traced_bytes, sim_notify notify, sim_due due) {
    struct sim_partitions *all = calloc(1, sizeof *all);
    if (!all) return NULL;
    all->notify = notify;
    all->due = due;
    all->leaves = 1;
    all->each = malloc(sizeof *all->each);
    struct sa_sim *sim = all->each ? sim_new(all, traced_bytes) : NULL;
    if (sim) return all->each[0] = sim;
    free(all->each);
    free(all);
    return NULL;
}

void sa_sim_leave_values(struct sa_sim *sim) {
    for (uint32_t i = 0; i < sim->all->count; i++) sim->all->each[i]->size_only = 1;
}

static void happen_planned(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    (void)body, (void)sender, (void)to;
    struct planned planned = *(struct planned *)object;
    free(object);
    sim_before_python(planned.sim);
    planned.sim->all->due(planned.number);
}

void sa_sim_free(struct sa_sim *sim) {
    if (!sim) return;
    struct sim_partitions *all = sim->all;
    sim_team_free(all->team);
    for (uint32_t i = 0; i < sim->queue.other_count; i++)
        if (sim->queue.heap[i].act == happen_planned) free(sim->queue.heap[i].object);
    for (uint32_t i = all->count; i--;)
        for (struct sim_node *node = all->each[i]->owned, *next; node; node = next) {
            next = node->next;
            node->free(node);
        }
    for (uint32_t i = 0; i < all->count; i++) {
        sim_queue_free(&all->each[i]->queue);
        sim_pool_free(&all->each[i]->pool);
        sim_messages_free(all->each[i]);
        free(all->each[i]->records);
        free(all->each[i]);
    }
    free(all->each);
    free(all->matches);
    free(all->nodes);
    free(all);
}

int sa_sim_schedule(struct sa_sim *sim, int64_t time_ns, uint64_t number, uint32_t sender, uint32_t to,
                    uint64_t content) {
    struct planned *planned = malloc(sizeof *planned);
    if (!planned) return -1;
    struct sa_sim *first = sim->all->each[0];
    *planned = (struct planned){first, number, content};
    struct sim_entry entry = {time_ns, ++sim->queue.sequence, NULL, sender, to};
    sim_queue_event(&first->queue, &(struct sim_event){entry, happen_planned, planned});
    return first->queue.lacking ? -1 : 0;
}

uint32_t sa_sim_pending(const struct sa_sim *sim) {
    uint32_t pending = 0;
    for (uint32_t i = 0; i < sim->all->count; i++) pending |= !sim_queue_is_empty(&sim->all->each[i]->queue);
    return pending;
}

void sim_record(struct sa_sim *sim, const struct sim_record *record) {
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
    sim->records[sim->record_count++] = *record;
}

static struct sim_record record_of(const struct sa_sim *sim, const struct sim_event *event) {
    const struct sim_entry *entry = &event->entry;
    uint64_t content = 0;
    if (event->act == happen_planned) {
        content = ((const struct planned *)event->object)->content;
    } else if (entry->body) {
        const struct sim_body *body = entry->body;
        uint32_t bytes = body->held < sim->traced_bytes ? body->held : sim->traced_bytes;
        content = body->kind ? body->kind->digest(body) ^ body->flipped : sa_crc32(0, body->data, bytes);
    }
    return (struct sim_record){entry->time_ns, entry->sender, entry->to, content, entry->sequence};
}

void sim_happen(struct sa_sim *sim, const struct sim_event *event, struct sa_sim *recorder) {
    sim->now_ns = event->entry.time_ns;
    sim->sequence = event->entry.sequence;
    if (sim->traced_bytes) {
        struct sim_record record = record_of(sim, event);
        sim_record(recorder, &record);
    }
    event->act(event->object, event->entry.body, event->entry.sender, event->entry.to);
}

uint32_t sa_sim_run(struct sa_sim *sim, uint64_t events) {
    sim_look_ahead(sim->all);
    if (sim->all->count > 1) return sim_run_partitions(sim, events);
    struct sim_event event;
    uint64_t left = events;
    uint32_t end = SIM_UNFINISHED;
    sim->stopped = sim->failed = 0;
    for (; left && end == SIM_UNFINISHED; left--) {
        if (!sim_queue_next(&sim->queue, INT64_MAX, &event)) {
            end = SIM_NOTHING_LEFT;
            break;
        }
        sim_happen(sim, &event, sim);
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
