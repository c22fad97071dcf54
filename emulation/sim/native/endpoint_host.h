/* A worker of method `switch`: its endpoints, one for each tree of switches that its job sums over, on a link. As
   `EndpointHost` of emulation/sim/network/endpoint_host.py and `TreeEndpoints` of emulation/sim/spines/spine_trees.py. */
#ifndef SWITCHAGG_SIM_ENDPOINT_HOST_H
#define SWITCHAGG_SIM_ENDPOINT_HOST_H

#include "emulation/sim/native/costs.h"
#include "emulation/sim/native/host.h"
#include "switchagg/native/worker/endpoint.h"

/* A tree's part. to: of the frames of each stream. */
struct sim_tree {
    struct sa_endpoint *endpoint;
    const uint32_t *to;
    uint32_t job_id, streams;
};

struct sim_worker;

/* number: what Python is told of it, once it has events. classes: those of its streams, ascending; by_class: each has a
   credit of its own. Returns NULL without memory. The endpoints live longer than the worker does. */
SA_EXPORT struct sim_worker *sa_sim_worker(struct sa_sim *sim, struct sim_link *link, uint32_t address, uint32_t number,
                                           const struct sim_tree *trees, uint32_t tree_count, const uint32_t *classes,
                                           uint32_t class_count, uint32_t by_class);

/* Go on with other endpoints, of a new generation of the job, in the order of its trees. */
SA_EXPORT void sa_sim_worker_readmit(struct sim_worker *worker, struct sa_endpoint *const *endpoints);

/* From the start: so many bit/s at most. */
SA_EXPORT void sa_sim_worker_pace(struct sim_worker *worker, uint64_t flow_bps);

/* Send what its endpoints have now. */
SA_EXPORT void sa_sim_worker_pump(struct sim_worker *worker);
SA_EXPORT uint64_t sa_sim_worker_drop_checksum(const struct sim_worker *worker);

#endif
