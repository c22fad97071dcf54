#include "emulation/sim/native/tail.h"

#include <math.h>
#include <string.h>

#define TWO_PI 6.283185307179586476925286766559

void sim_tail_begin(struct sim_tail *tail, const struct sim_tail_facts *facts) {
    *tail = (struct sim_tail){.facts = *facts};
    memcpy(&tail->random, facts->words, sizeof tail->random);
}

/* `random.gauss(0, 1)`: the operations of CPython's, in its order. */
static double gauss(struct sim_tail *tail) {
    if (tail->has_second) {
        tail->has_second = 0;
        return tail->second;
    }
    double angle = sim_mersenne_next(&tail->random) * TWO_PI;
    double radius = sqrt(-2.0 * log(1.0 - sim_mersenne_next(&tail->random)));
    tail->second = sin(angle) * radius;
    tail->has_second = 1;
    return cos(angle) * radius;
}

int64_t sim_tail_arrival_ns(struct sim_tail *tail, int64_t usual_ns, int64_t frame_ns) {
    const struct sim_tail_facts *facts = &tail->facts;
    while (usual_ns >= tail->until_ns) { /* halves are rounded to even, as by Python's `round` */
        tail->until_ns += 1 + llrint(-log(1.0 - sim_mersenne_next(&tail->random)) / facts->burst_rate);
        tail->extra_ns = llrint(facts->p50_ns * exp(facts->sigma * gauss(tail)));
    }
    int64_t late_ns = usual_ns + tail->extra_ns, behind_ns = tail->last_ns + frame_ns;
    return tail->last_ns = late_ns > behind_ns ? late_ns : behind_ns;
}
