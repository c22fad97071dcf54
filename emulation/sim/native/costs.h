/* The cost of communicating at a host, as Processor and Pace of emulation/sim/host_costs.py. */
#ifndef SWITCHAGG_SIM_COSTS_H
#define SWITCHAGG_SIM_COSTS_H

#include "emulation/sim/native/sim.h"

struct sim_message; /* message.h */

/* A message on its way out, of a class's flow; or, without one, that has come from a member. */
struct sim_task {
    struct sim_task *next;
    struct sim_message *message;
    void *flow;
    uint32_t from;
};

/* A processor does one thing after the other, each in its time. */
struct sim_processor {
    struct sa_sim *sim;
    void (*finish)(void *host, const struct sim_task *task);
    void *host;
    struct sim_task *first, **end;
    int64_t free_ns;
};

void sim_processor_init(struct sim_processor *processor, struct sa_sim *sim,
                        void (*finish)(void *host, const struct sim_task *task), void *host);

/* Finish a task after all before it and what its message takes: at once, if it is idle and that is nothing. The run
   ends if there is no memory. */
void sim_processor_run(struct sim_processor *processor, struct sim_task task);
void sim_processor_end(struct sim_processor *processor);

/* The pace of one connection's frames: a frame begins when the one before it would have ended. */
struct sim_pace {
    int64_t free_ns;
    uint64_t remainder;
};

/* When the next frame may leave. */
static inline int64_t sim_pace_next_ns(const struct sim_pace *pace) { return pace->free_ns + (pace->remainder > 0); }

/* A frame leaves now. */
void sim_pace_left(struct sim_pace *pace, uint64_t flow_bps, int64_t now_ns, uint32_t size_bytes);

#endif
