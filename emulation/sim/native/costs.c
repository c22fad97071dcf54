#include "emulation/sim/native/costs.h"

#include <stdlib.h>

#include "emulation/sim/native/message.h"

void sim_processor_init(struct sim_processor *processor, struct sa_sim *sim,
                        void (*finish)(void *host, const struct sim_task *task), void *host) {
    *processor = (struct sim_processor){.sim = sim, .finish = finish, .host = host};
    processor->end = &processor->first;
}

static void due(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_processor *processor = object;
    struct sim_task *task = processor->first; /* they end in the order in which they began */
    (void)body, (void)sender, (void)to;
    if (!(processor->first = task->next)) processor->end = &processor->first;
    processor->finish(processor->host, task);
    free(task);
}

void sim_processor_run(struct sim_processor *processor, struct sim_task task) {
    struct sa_sim *sim = processor->sim;
    int64_t takes_ns = task.message->takes_ns;
    if (!takes_ns && !processor->first) {
        processor->finish(processor->host, &task);
        return;
    }
    struct sim_task *queued = malloc(sizeof *queued);
    if (!queued) {
        sim->queue.lacking = 1;
        return;
    }
    *queued = task;
    queued->next = NULL;
    *processor->end = queued;
    processor->end = &queued->next;
    processor->free_ns = (processor->free_ns > sim->now_ns ? processor->free_ns : sim->now_ns) + takes_ns;
    sim_schedule(sim, processor->free_ns, due, processor, 0, 0);
}

void sim_processor_end(struct sim_processor *processor) {
    for (struct sim_task *task = processor->first, *next; task; task = next) {
        next = task->next;
        sim_message_let_go(processor->sim, task->message);
        free(task);
    }
}

void sim_pace_left(struct sim_pace *pace, uint64_t flow_bps, int64_t now_ns, uint32_t size_bytes) {
    if (sim_pace_next_ns(pace) < now_ns) *pace = (struct sim_pace){now_ns, 0};
    uint64_t units = pace->remainder + size_bytes * SIM_UNITS;
    pace->free_ns += (int64_t)(units / flow_bps);
    pace->remainder = units % flow_bps;
}
