#include "emulation/sim/native/partitions.h"

#include <stdlib.h>
#include <string.h>

#define REORDER_SPAN_FRAMES 8u
#define FULL_FRAME_BYTES 1514u
#define BURST_BITS_MAX 15u
#define DATAGRAM_BYTES_MAX 65536u

static uint32_t new_cost(struct sim_link *link, uint32_t bytes) {
    sim_units units = (sim_units)bytes * SIM_UNITS;
    uint32_t at = bytes < link->cost_bytes[0]; /* larger ones first, which keep their place */
    if (!at) {
        link->cost_bytes[1] = link->cost_bytes[0];
        link->costs[1] = link->costs[0];
    }
    link->cost_bytes[at] = bytes;
    link->costs[at].ns = (int64_t)(units / link->rate_bps);
    link->costs[at].remainder = (uint64_t)(units % link->rate_bps);
    return at;
}

void sim_link_after(struct sim_link *link, int64_t *free_ns, uint64_t *remainder, uint32_t bytes) {
    uint32_t at = link->cost_bytes[0] != bytes;
    if (link->cost_bytes[at] != bytes) at = new_cost(link, bytes);
    uint64_t more = *remainder + link->costs[at].remainder;
    int seconds_over = more >= link->rate_bps;
    *free_ns += link->costs[at].ns + seconds_over;
    *remainder = seconds_over ? more - link->rate_bps : more;
}

static void drop(struct sim_link *link, struct sim_body *body, enum sim_fault fault) {
    link->faults[fault]++;
    sim_body_let_go(&link->sim->pool, body);
}

static void damage(struct sim_link *link, struct sim_body **body) {
    struct sim_mersenne *random = &link->random->random;
    uint32_t burst = 0, first_bit = 0;
    if (!(*body)->kind || !(*body)->kind->damage) {
        uint32_t bits = 8 * (*body)->length, length = 1 + (uint32_t)(sim_mersenne_next(random) * BURST_BITS_MAX);
        if (length > bits) length = bits;
        burst = (uint32_t)(sim_mersenne_next(random) * (1u << length)) | 1u | 1u << (length - 1);
        first_bit = (uint32_t)(sim_mersenne_next(random) * (bits - length + 1));
    }
    struct sim_body *copy = sim_body_own(&link->sim->pool, *body);
    if (!copy) {
        link->sim->queue.lacking = 1;
        return;
    }
    *body = copy;
    sim_body_damage(copy, (uint16_t)burst, first_bit);
}

static inline void arrive(struct sim_link *link, int64_t time_ns, struct sim_body *body, uint32_t sender, uint32_t to) {
    link->delivered_frames++;
    link->delivered_bytes += body->wire_bytes;
    if (link->end == link->sim)
        sim_queue_lane(&link->sim->queue, &link->lane, time_ns, body, sender, to);
    else
        sim_cross(link, time_ns, body, sender, to);
}

static void deliver_with_faults(struct sim_link *link, int64_t arrival_ns, struct sim_body *body, uint32_t sender,
                                uint32_t to) {
    struct sim_faults *faults = link->random;
    struct sim_mersenne *random = &faults->random;
    if (faults->loss > 0 && sim_mersenne_next(random) < faults->loss) {
        drop(link, body, SIM_LOST);
        return;
    }
    if (faults->corrupt > 0 && sim_mersenne_next(random) < faults->corrupt) {
        link->faults[SIM_CORRUPTED]++;
        damage(link, &body);
    }
    int64_t times_ns[2] = {arrival_ns, 0};
    uint32_t copies = 1;
    if (faults->duplicate > 0 && sim_mersenne_next(random) < faults->duplicate) {
        link->faults[SIM_DUPLICATED]++;
        times_ns[copies++] = arrival_ns + (int64_t)(sim_mersenne_next(random) * (double)faults->span_ns);
        body->holders++;
    }
    if (faults->reorder > 0 && sim_mersenne_next(random) < faults->reorder) {
        link->faults[SIM_HELD_BACK]++;
        times_ns[0] += 1 + (int64_t)(sim_mersenne_next(random) * (double)faults->span_ns);
    }
    for (uint32_t i = 0; i < copies; i++) arrive(link, times_ns[i], body, sender, to);
}

static inline void deliver(struct sim_link *link, int64_t arrival_ns, struct sim_body *body, uint32_t sender,
                           uint32_t to) {
    if (!link->is_plain && link->random) {
        struct sim_tail *tail = &link->random->tail;
        if (tail->facts.words) {
            int64_t frame_ns = (int64_t)((sim_units)body->wire_bytes * SIM_UNITS / link->rate_bps);
            arrival_ns = sim_tail_arrival_ns(tail, arrival_ns, frame_ns);
        }
        deliver_with_faults(link, arrival_ns, body, sender, to);
        return;
    }
    arrive(link, arrival_ns, body, sender, to);
}

void sim_link_deliver(struct sim_link *link, int64_t arrival_ns, struct sim_body *body, uint32_t sender, uint32_t to) {
    deliver(link, arrival_ns, body, sender, to);
}

/* Treats a frame that finds a long queue; 0: it is dropped. */
static int admit(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t *to) {
    sim_units backlog = (sim_units)(uint64_t)(link->free_ns - ready_ns) * link->rate_bps + link->remainder;
    if (backlog + (sim_units)body->wire_bytes * SIM_UNITS > link->queue_units) {
        drop(link, body, SIM_DROP_QUEUE);
        return 0;
    }
    if (*to & SIM_DROPPABLE && backlog > link->drop_units) {
        drop(link, body, SIM_DROP_FIRST);
        return 0;
    }
    if (*to & SIM_ECT && backlog > link->ecn_units) {
        *to |= SIM_CE;
        link->marked_frames++;
    }
    return 1;
}

int sim_link_send(struct sim_link *link, struct sim_body *body, int64_t ready_ns, uint32_t sender, uint32_t to) {
    if (!link->is_plain && link->queue_up) return link->queue_up(link, body, ready_ns, sender, to);
    uint32_t bytes = body->wire_bytes;
    int64_t wait_ns = link->free_ns - ready_ns;
    if (wait_ns < 0 || (!wait_ns && !link->remainder)) {
        link->free_ns = ready_ns;
        link->remainder = 0;
    } else if (wait_ns >= link->calm_ns && !admit(link, body, ready_ns, &to)) {
        return 0;
    }
    sim_link_after(link, &link->free_ns, &link->remainder, bytes);
    link->sent_frames++;
    link->sent_bytes += bytes;
    deliver(link, link->free_ns + link->delay_ns + (link->remainder > 0), body, sender, to);
    return 1;
}

uint64_t sim_link_backlog_bytes(const struct sim_link *link, int64_t now_ns) {
    if (!link->is_plain && link->pausing) return sim_pausing_backlog_bytes(link, now_ns);
    if (link->free_ns < now_ns) return 0;
    sim_units units = (sim_units)(uint64_t)(link->free_ns - now_ns) * link->rate_bps + link->remainder;
    return units >> 64 ? (uint64_t)((units + SIM_UNITS - 1) / SIM_UNITS)
                       : (uint64_t)units / SIM_UNITS + ((uint64_t)units % SIM_UNITS > 0);
}

int64_t sim_link_time_at_backlog_ns(const struct sim_link *link, uint64_t size_bytes) {
    if (!link->is_plain && link->pausing) { /* the earliest instant: if no class is paused until then */
        uint64_t backlog = sim_pausing_backlog_bytes(link, link->sim->now_ns);
        sim_units left = (sim_units)(backlog > size_bytes ? backlog - size_bytes : 0) * SIM_UNITS;
        return link->sim->now_ns + (int64_t)((left + link->rate_bps - 1) / link->rate_bps);
    }
    sim_units less = (sim_units)size_bytes * SIM_UNITS;
    if (less <= link->remainder) {
        uint64_t left = link->remainder - (uint64_t)less;
        return link->free_ns + (int64_t)((left + link->rate_bps - 1) / link->rate_bps);
    }
    return link->free_ns - (int64_t)((less - link->remainder) / link->rate_bps);
}

static sim_units units_or_none(int64_t bytes) { return bytes < 0 ? ~(sim_units)0 : (sim_units)bytes * SIM_UNITS; }

static void link_free(struct sim_node *node) {
    struct sim_link *link = (struct sim_link *)(void *)((uint8_t *)node - offsetof(struct sim_link, node));
    sim_strict_free(link->strict);
    free(link->lane.ring);
    for (uint32_t i = 0; i < 2; i++) free(link->crossings[i].entries);
    free(link->random);
    free(link);
}

static int64_t calm_ns(const struct sim_link *link) {
    sim_units largest = (sim_units)DATAGRAM_BYTES_MAX * SIM_UNITS, units = 0;
    if (link->queue_units > largest) units = link->queue_units - largest;
    if (link->ecn_units < units) units = link->ecn_units;
    if (link->drop_units < units) units = link->drop_units;
    sim_units ns = units / link->rate_bps;
    return ns < INT64_MAX ? (int64_t)ns : INT64_MAX;
}

static struct sim_faults *faults_new(const struct sim_link_facts *facts) {
    struct sim_faults *faults = calloc(1, sizeof *faults);
    if (!faults) return NULL;
    uint64_t span_ns = (uint64_t)((sim_units)REORDER_SPAN_FRAMES * FULL_FRAME_BYTES * SIM_UNITS / facts->rate_bps);
    faults->loss = facts->loss, faults->duplicate = facts->duplicate;
    faults->reorder = facts->reorder, faults->corrupt = facts->corrupt;
    faults->span_ns = span_ns ? (int64_t)span_ns : 1;
    if (facts->words) memcpy(&faults->random, facts->words, sizeof faults->random);
    if (facts->tail.words) sim_tail_begin(&faults->tail, &facts->tail);
    return faults;
}

struct sim_link *sim_link_new(struct sa_sim *sim, const struct sim_link_facts *facts) {
    struct sim_link *link = aligned_alloc(_Alignof(struct sim_link), sizeof *link);
    if (!link) return NULL;
    memset(link, 0, sizeof *link);
    link->node.free = link_free;
    sim_own(sim, &link->node);
    link->sim = sim;
    link->users = 1;
    link->rate_bps = facts->rate_bps;
    link->delay_ns = facts->delay_ns;
    link->queue_units = units_or_none(facts->queue_bytes);
    link->ecn_units = units_or_none(facts->ecn_bytes);
    link->drop_units = units_or_none(facts->drop_bytes);
    link->calm_ns = calm_ns(link);
    link->is_plain = !facts->words && !facts->tail.words && !facts->strict;
    if ((facts->words || facts->tail.words) && !(link->random = faults_new(facts))) return NULL;
    if (facts->strict && !(link->strict = sim_strict_new(link))) return NULL;
    return link;
}

void sim_link_lead_to(struct sim_link *link, sim_action act, void *object, sim_look look) {
    link->lane.act = act;
    link->lane.object = object;
    link->lane.look = look;
}

void sim_link_end_in(struct sim_link *link, struct sa_sim *end) {
    struct sim_partitions *all = end->all;
    link->end = end;
    if (sim_queue_add_lane(&end->queue, &link->lane, link->delay_ns)) end->queue.lacking = 1;
    if (end == link->sim) return;
    link->next_incoming = end->incoming;
    end->incoming = link;
    if (!all->least_ns || link->delay_ns < all->least_ns) all->least_ns = link->delay_ns;
}

static void lose(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    (void)sender, (void)to;
    drop(object, body, SIM_LOST); /* in turn: the link is another partition's, perhaps */
}

void sim_link_cut(struct sim_link *link, uint32_t is_cut) {
    if ((link->whole.act != NULL) == (is_cut != 0)) return;
    link->sim->all->in_turn = 1;
    struct sim_arrival end = is_cut ? (struct sim_arrival){lose, link, NULL} : link->whole;
    link->whole = is_cut ? (struct sim_arrival){link->lane.act, link->lane.object, link->lane.look} : (struct sim_arrival){0};
    sim_link_lead_to(link, end.act, end.object, end.look);
}
