#include "emulation/sim/native/partitions.h"

#include <stdlib.h>

#include "emulation/sim/native/team.h"

#define WORTH 4u         /* a window of less than this part of the delay costs more than single events */
#define PATIENCE_MOST 64 /* delays until hosts are asked again */

/* ---- frames that cross */

static void take_in(struct sa_sim *sim, struct sim_link *link, uint32_t parity) {
    struct sim_crossings *crossings = &link->crossings[parity];
    for (uint32_t i = 0; i < crossings->count; i++) sim_queue_entry(&sim->queue, &link->lane, &crossings->entries[i]);
    crossings->count = 0;
}

static void take_all_in(struct sa_sim *sim, uint32_t parity) {
    for (struct sim_link *link = sim->incoming; link; link = link->next_incoming) take_in(sim, link, parity);
}

static int crossings_grow(struct sim_crossings *crossings) {
    uint32_t room = crossings->room ? 2 * crossings->room : 16;
    struct sim_entry *entries = realloc(crossings->entries, room * sizeof *entries);
    if (!entries) return -1;
    crossings->entries = entries;
    crossings->room = room;
    return 0;
}

void sim_cross(struct sim_link *link, int64_t time_ns, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sa_sim *sim = link->sim;
    struct sim_partitions *all = sim->all;
    if (!(body = sim_body_own(&sim->pool, body))) { /* holders are counted by one thread */
        sim->queue.lacking = 1;
        return;
    }
    struct sim_entry entry = {time_ns, ++sim->queue.sequence, body, sender, to};
    if (!all->in_window) {
        sim_queue_entry(&link->end->queue, &link->lane, &entry);
        all->changed = link->end->number;
        all->changes++;
        return;
    }
    struct sim_crossings *crossings = &link->crossings[all->parity];
    if (crossings->count == crossings->room && crossings_grow(crossings)) {
        sim->queue.lacking = 1;
        return;
    }
    crossings->entries[crossings->count++] = entry;
    if (time_ns < sim->sent_ns) sim->sent_ns = time_ns;
}

/* ---- one by one */

/* A partition has another next event. */
static void play(struct sim_partitions *all, uint32_t number) {
    sim_match match = sim_queue_head(&all->each[number]->queue);
    if (match != SIM_NO_MATCH) match |= number;
    uint32_t at = all->leaves + number;
    all->matches[at] = match;
    for (; at > 1; at /= 2) {
        sim_match other = all->matches[at ^ 1];
        match = other < match ? other : match;
        all->matches[at / 2] = match;
    }
}

static void play_all(struct sim_partitions *all) {
    for (uint32_t i = 0; i < all->count; i++) play(all, i);
    all->python_acted = 0;
    all->changes = 0;
}

static int64_t time_of(sim_match match) { return match == SIM_NO_MATCH ? INT64_MAX : (int64_t)(uint64_t)(match >> 64); }

/* Events before end_ns happen in order, up to so many; returns how many. */
static uint64_t step(struct sim_partitions *all, int64_t end_ns, uint64_t most) {
    struct sa_sim *first = all->each[0];
    struct sim_event event;
    uint64_t count = 0;
    int stops = 0;
    while (count < most && !stops && time_of(all->matches[1]) < end_ns) {
        uint32_t number = (uint32_t)all->matches[1] & ((1u << SIM_LANE_BITS) - 1);
        struct sa_sim *sim = all->each[all->current = number];
        sim_queue_next(&sim->queue, INT64_MAX, &event);
        count++;
        sim_happen(sim, &event, first);
        stops = first->stopped || sim->stopped || sim->queue.lacking;
        first->now_ns = sim->now_ns;
        if (all->python_acted || all->changes > 1) {
            play_all(all);
            continue;
        }
        if (all->changes) play(all, all->changed);
        all->changes = 0;
        play(all, number);
    }
    return count;
}

void sim_before_python(struct sa_sim *sim) {
    struct sim_partitions *all = sim->all;
    for (uint32_t i = 0; i < all->count; i++) all->each[i]->now_ns = sim->now_ns;
    all->python_acted = 1;
    all->quiet_ns = 0;
}

/* ---- windows */

void sim_window(struct sa_sim *sim) {
    const struct sim_partitions *all = sim->all;
    struct sim_event event;
    uint64_t count = 0;
    take_all_in(sim, all->parity ^ 1);
    sim->sent_ns = INT64_MAX;
    while (!sim->stopped && !sim->queue.lacking && sim_queue_next(&sim->queue, all->window_ns, &event)) {
        count++;
        sim_happen(sim, &event, sim);
    }
    sim->window_events = count;
    int64_t head_ns = time_of(sim_queue_head(&sim->queue));
    sim->next_ns = head_ns < sim->sent_ns ? head_ns : sim->sent_ns;
}

/* Until when no host has anything for Python, if it has nothing now. */
static int64_t quiet_ns(const struct sim_partitions *all, int64_t now_ns) {
    int64_t first_ns = INT64_MAX;
    for (uint32_t i = 0; i < all->node_count && first_ns > now_ns; i++) {
        const struct sim_node *node = all->nodes[i];
        if (!node) continue;
        int64_t quiet_ns = node->quiet_ns ? node->quiet_ns(node, now_ns, all->host_rate_bps) : now_ns;
        if (quiet_ns < first_ns) first_ns = quiet_ns;
    }
    return first_ns == INT64_MAX ? first_ns : first_ns - all->spread_ns;
}

/* The end of a window from now_ns on; 0: it isn't worth it. */
static int64_t window_end(const struct sim_partitions *all, int64_t now_ns, int64_t planned_ns) {
    int64_t end_ns = now_ns + all->least_ns;
    if (planned_ns < end_ns) end_ns = planned_ns;
    if (all->quiet_ns < end_ns) end_ns = all->quiet_ns;
    return (end_ns - now_ns) * WORTH < all->least_ns ? 0 : end_ns;
}

/* Of those that stopped, the one whose last event is the first; NULL: none has. */
static struct sa_sim *first_stopped(const struct sim_partitions *all) {
    struct sa_sim *first = NULL;
    for (uint32_t i = 1; i < all->count; i++) {
        struct sa_sim *sim = all->each[i];
        if (!sim->stopped) continue;
        if (!first || sim->now_ns < first->now_ns || (sim->now_ns == first->now_ns && sim->sequence < first->sequence)) first = sim;
    }
    return first;
}

/* Windows follow each other from now_ns on; returns how many events happened. */
static uint64_t run_windows(struct sim_partitions *all, int64_t now_ns, int64_t end_ns, uint64_t most) {
    int64_t planned_ns = time_of(sim_queue_head(&all->each[0]->queue));
    uint64_t count = 0;
    int stops = 0;
    all->in_window = 1;
    do {
        all->window_ns = end_ns;
        sim_team_run(all->team, all);
        all->parity ^= 1;
        now_ns = INT64_MAX;
        all->window_events = 0;
        for (uint32_t i = 1; i < all->count; i++) {
            const struct sa_sim *sim = all->each[i];
            all->window_events += sim->window_events;
            if (sim->next_ns < now_ns) now_ns = sim->next_ns;
            stops |= sim->stopped || sim->queue.lacking;
        }
        count += all->window_events;
        all->each[0]->windows++;
    } while (count < most && !stops && now_ns < INT64_MAX && (end_ns = window_end(all, now_ns, planned_ns)));
    all->in_window = 0;
    for (uint32_t i = 1; i < all->count; i++) take_all_in(all->each[i], all->parity ^ 1);
    return count;
}

/* The records of windows, in the order of the events; up to the last one of `stopped`. */
static void merge_records(struct sim_partitions *all, const struct sa_sim *stopped) {
    uint64_t taken[SIM_PARTITIONS_MAX] = {0};
    for (;;) {
        uint32_t least = 0;
        const struct sim_record *first = NULL;
        for (uint32_t i = 1; i < all->count; i++) {
            const struct sa_sim *sim = all->each[i];
            if (taken[i] == sim->record_count) continue;
            const struct sim_record *record = &sim->records[taken[i]];
            if (!first || record->time_ns < first->time_ns ||
                (record->time_ns == first->time_ns && record->sequence < first->sequence)) {
                first = record;
                least = i;
            }
        }
        if (!first) break;
        sim_record(all->each[0], first);
        if (all->each[least] == stopped && ++taken[least] == stopped->record_count) break;
        if (all->each[least] != stopped) taken[least]++;
    }
    for (uint32_t i = 1; i < all->count; i++) all->each[i]->record_count = 0;
}

/* What hosts had for Python within a window, where calls fail: in order. */
static void notice_stopped(struct sim_partitions *all, struct sa_sim *stopped) {
    struct sa_sim *first = all->each[0];
    for (; stopped && !first->failed && !first->stray; stopped = first_stopped(all)) {
        stopped->stopped = 0;
        first->now_ns = stopped->now_ns;
        first->stray = stopped->stray;
        if (stopped->fail) stopped->fail(stopped->failing);
        if (stopped->noticed) sim_notice(stopped, stopped->noticed - 1);
        stopped->noticed = 0;
    }
}

/* ---- all */

void sim_look_ahead(struct sim_partitions *all) {
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < all->count; i++) lanes += all->each[i]->queue.lane_count;
    for (uint32_t i = 0; i < all->count; i++) all->each[i]->queue.ahead = lanes > SIM_FEW_LANES ? SIM_UPCOMING : 1;
}

uint32_t sim_run_partitions(struct sa_sim *first, uint64_t events) {
    struct sim_partitions *all = first->all;
    uint64_t happened = 0;
    int64_t patience = 1;
    int lacks = 0;
    for (uint32_t i = 0; i < all->count; i++) all->each[i]->stopped = all->each[i]->failed = 0;
    all->quiet_ns = 0;
    play_all(all);
    while (happened < events && !first->stopped && !first->stray && !lacks && all->matches[1] != SIM_NO_MATCH) {
        int64_t now_ns = time_of(all->matches[1]), planned_ns = time_of(sim_queue_head(&first->queue)), end_ns = 0;
        int64_t step_ns = planned_ns < now_ns + all->least_ns ? planned_ns + 1 : now_ns + all->least_ns * patience;
        if (!all->in_turn && planned_ns >= now_ns + all->least_ns / WORTH) {
            if (all->quiet_ns < now_ns + all->least_ns) all->quiet_ns = quiet_ns(all, now_ns);
            end_ns = window_end(all, now_ns, planned_ns);
            patience = end_ns ? 1 : patience < PATIENCE_MOST ? 2 * patience : patience;
        }
        if (end_ns) {
            happened += run_windows(all, now_ns, end_ns, events - happened);
            struct sa_sim *stopped = first_stopped(all);
            if (first->traced_bytes) merge_records(all, stopped);
            for (uint32_t i = 1; i < all->count; i++)
                if (all->each[i]->now_ns > first->now_ns) first->now_ns = all->each[i]->now_ns;
            notice_stopped(all, stopped);
            play_all(all);
        } else {
            happened += step(all, all->in_turn ? INT64_MAX : step_ns, events - happened);
        }
        for (uint32_t i = 0; i < all->count; i++) lacks |= all->each[i]->queue.lacking;
    }
    int64_t now_ns = first->now_ns;
    for (uint32_t i = 0; i < all->count; i++) all->each[i]->now_ns = now_ns;
    first->events += happened;
    if (first->stopped) return SIM_STOPPED;
    if (lacks) return SIM_NO_MEMORY;
    return all->matches[1] == SIM_NO_MATCH ? SIM_NOTHING_LEFT : SIM_UNFINISHED;
}

struct sa_sim *sa_sim_partition(struct sa_sim *first) {
    struct sim_partitions *all = first->all;
    if (all->count == SIM_PARTITIONS_MAX) return NULL;
    if (all->count == all->leaves) {
        uint32_t leaves = 2 * all->leaves;
        struct sa_sim **each = realloc(all->each, leaves * sizeof *each);
        if (each) all->each = each;
        sim_match *matches = each ? realloc(all->matches, 2 * leaves * sizeof *matches) : NULL;
        if (!matches) return NULL;
        for (uint32_t i = 0; i < 2 * leaves; i++) matches[i] = SIM_NO_MATCH;
        all->matches = matches;
        all->leaves = leaves;
    }
    struct sa_sim *sim = sim_new(all, first->traced_bytes);
    return sim ? all->each[sim->number] = sim : NULL;
}

int sa_sim_threads(struct sa_sim *sim, uint32_t threads, uint64_t events_least) {
    sim_team_free(sim->all->team);
    sim->all->team = NULL;
    sim->all->threaded_events = events_least;
    return threads > 1 && !(sim->all->team = sim_team_new(threads)) ? -1 : 0;
}
