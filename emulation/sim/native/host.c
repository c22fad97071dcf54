#include "emulation/sim/native/host.h"

#include <stdlib.h>

#define CREDIT_BYTES_MAX 65536u
#define CREDIT_NS 1000000u /* about so much sending time is kept in the queue */

struct sim_burst {
    int64_t left_ns;
    uint64_t bytes;
};

void sim_alarm_init(struct sim_alarm *alarm, struct sa_sim *sim, void (*ring)(void *host), void *host) {
    *alarm = (struct sim_alarm){sim, ring, host, -1};
}

static void due(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_alarm *alarm = object;
    (void)body, (void)sender, (void)to;
    if (alarm->at_ns != alarm->sim->now_ns) return; /* it was set to an earlier time, and has rung */
    alarm->at_ns = -1;
    alarm->ring(alarm->host);
}

void sim_alarm_set(struct sim_alarm *alarm, int64_t deadline_ns) {
    if (deadline_ns < 0 || (alarm->at_ns >= 0 && deadline_ns >= alarm->at_ns)) return;
    alarm->at_ns = deadline_ns > alarm->sim->now_ns ? deadline_ns : alarm->sim->now_ns;
    sim_schedule(alarm->sim, alarm->at_ns, due, alarm, 0, 0);
}

void sim_uplink_init(struct sim_uplink *uplink, struct sim_link *link, uint32_t kind, uint32_t frame_bytes,
                     uint32_t (*give)(void *host, uint32_t limit, uint32_t kind), void *host) {
    uint64_t credit = (uint64_t)((sim_units)link->rate_bps * CREDIT_NS / SIM_UNITS);
    if (credit > CREDIT_BYTES_MAX) credit = CREDIT_BYTES_MAX;
    if (credit < 2ull * frame_bytes) credit = 2ull * frame_bytes;
    *uplink = (struct sim_uplink){.link = link, .kind = kind, .frame_bytes = frame_bytes, .credit_bytes = credit,
                                  .give = give, .host = host};
}

/* Bytes of this address that haven't left yet. */
static uint64_t burst_backlog(struct sim_uplink *uplink) {
    uint64_t bytes = 0;
    while (uplink->burst_count && uplink->bursts[uplink->burst_first].left_ns <= uplink->link->sim->now_ns) {
        uplink->burst_first++;
        uplink->burst_count--;
    }
    for (uint32_t i = 0; i < uplink->burst_count; i++) bytes += uplink->bursts[uplink->burst_first + i].bytes;
    return bytes;
}

static void note_burst(struct sim_uplink *uplink, int64_t left_ns, uint64_t bytes) {
    if (uplink->burst_first + uplink->burst_count == uplink->burst_room) {
        if (uplink->burst_first) {
            for (uint32_t i = 0; i < uplink->burst_count; i++) uplink->bursts[i] = uplink->bursts[uplink->burst_first + i];
        } else {
            uint32_t room = uplink->burst_room ? 2 * uplink->burst_room : 8;
            struct sim_burst *bursts = realloc(uplink->bursts, room * sizeof *bursts);
            if (!bursts) {
                uplink->link->sim->queue.lacking = 1;
                return;
            }
            uplink->bursts = bursts;
            uplink->burst_room = room;
        }
        uplink->burst_first = 0;
    }
    uplink->bursts[uplink->burst_first + uplink->burst_count++] = (struct sim_burst){left_ns, bytes};
}

static uint64_t backlog(const struct sim_uplink *uplink) {
    if (uplink->kind != SIM_ALL_CLASSES) return sim_link_backlog_of(uplink->link, uplink->kind);
    return sim_link_backlog_bytes(uplink->link, uplink->link->sim->now_ns);
}

static int64_t time_at_backlog_ns(const struct sim_uplink *uplink, uint64_t bytes) {
    if (uplink->kind != SIM_ALL_CLASSES) return sim_link_time_at_backlog_of_ns(uplink->link, uplink->kind, bytes);
    return sim_link_time_at_backlog_ns(uplink->link, bytes);
}

static void wake(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_uplink *uplink = object;
    (void)body, (void)sender, (void)to;
    uplink->waiting = 0;
    sim_uplink_pump(uplink);
}

void sim_uplink_pump(struct sim_uplink *uplink) {
    if (uplink->waiting) return;
    int alone = uplink->link->users == 1;
    uint64_t used = alone ? backlog(uplink) : burst_backlog(uplink);
    uint32_t limit = used < uplink->credit_bytes ? (uint32_t)(uplink->credit_bytes - used) / uplink->frame_bytes : 0;
    uint32_t frames = limit ? uplink->give(uplink->host, limit, uplink->kind) : 0;
    if (!alone && frames)
        note_burst(uplink, time_at_backlog_ns(uplink, 0), (uint64_t)frames * uplink->frame_bytes);
    if (frames < limit) return;
    uplink->waiting = 1;
    struct sa_sim *sim = uplink->link->sim;
    int64_t wake_ns =
        alone || !uplink->burst_count ? time_at_backlog_ns(uplink, uplink->credit_bytes / 2) : uplink->bursts[uplink->burst_first].left_ns;
    sim_schedule(sim, wake_ns > sim->now_ns ? wake_ns : sim->now_ns, wake, uplink, 0, 0);
}

void sim_uplink_end(struct sim_uplink *uplink) { free(uplink->bursts); }
