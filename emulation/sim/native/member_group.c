#include "emulation/sim/native/member_state.h"

#include <stdlib.h>

static void group_free(struct sim_node *node) {
    struct sim_group *group = (struct sim_group *)node;
    free(group->failures);
    free(group);
}

struct sim_group *sa_sim_group(struct sa_sim *sim, const struct sim_group_facts *facts) {
    struct sim_group *group = calloc(1, sizeof *group);
    if (!group) return NULL;
    group->node.free = group_free;
    group->sim = sim;
    group->facts = *facts;
    sim_own(sim, &group->node);
    if (!(group->failures = calloc(sim->all->count, sizeof *group->failures))) return NULL;
    if (facts->report) sim->all->in_turn = 1;
    return group;
}

void sa_sim_group_costs(struct sim_group *group, int64_t transfer_ns, uint64_t flow_bps) {
    group->transfer_ns = transfer_ns;
    group->flow_bps = flow_bps;
}

const struct sim_failed *sa_sim_group_failed(const struct sim_group *group) { return &group->failed; }

void sim_member_failed(void *object) {
    const struct sim_member *member = object;
    struct sim_group *group = member->group;
    if (group->failed.failure) return;
    group->failed = *member->failed;
    for (uint32_t i = 0; i < group->sim->all->count; i++) group->failures[i] = group->failed;
}

int64_t sim_member_quiet_ns(const struct sim_node *node, int64_t now_ns, uint64_t rate_bps) {
    const struct sim_member *member = (const struct sim_member *)node;
    int64_t first_ns = INT64_MAX, at_hand = 1 + (int64_t)member->in.count;
    for (const struct sim_task *task = member->processor.first; task; task = task->next) at_hand++;
    for (uint32_t i = 0; i < member->in.room; i++) {
        const struct incoming *in = member->in.items[i];
        for (uint32_t j = 0; in && j < in->receiver.range_count; j++)
            at_hand += (int64_t)(in->receiver.ranges[j].end - in->receiver.ranges[j].start);
    }
    for (const struct sim_call *call = member->party.calls; call; call = call->next) {
        int64_t lacking = (int64_t)call->execution->program->arriving - call->arrived - at_hand;
        if (lacking <= 0) return now_ns;
        sim_units units = (sim_units)(uint64_t)lacking * call->message_bytes * SIM_UNITS;
        int64_t ns = (int64_t)(units / rate_bps);
        if (ns < first_ns) first_ns = ns;
    }
    return first_ns == INT64_MAX ? first_ns : now_ns + first_ns;
}
