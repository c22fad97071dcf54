/* See uc_switch.h. */
#include "transport/native/rdma/uc_switch.h"

#include <stdlib.h>

#define ITERATIONS_PER_CHECK 8u /* iterations with arrivals between two checks of the eventfd */

struct sa_uc_switch {
    struct sa_uc_plane *rdma;
    struct sa_udp *udp;
    int wake;
    uint32_t segments;
    struct sa_udp_message *unsent; /* what the socket has no room for yet; nothing is received before it has left */
    uint32_t unsent_count;
};

struct sa_uc_switch *sa_uc_switch_new(struct sa_uc_plane *rdma, struct sa_udp *udp, int wake, uint32_t segments) {
    struct sa_uc_switch *sw = calloc(1, sizeof *sw);
    if (!sw) return NULL;
    *sw = (struct sa_uc_switch){.rdma = rdma, .udp = udp, .wake = wake, .segments = segments};
    return sw;
}

void sa_uc_switch_free(struct sa_uc_switch *sw) { free(sw); }

/* 0 or -errno. Keeps what the socket had no room for. */
static int send_unsent(struct sa_uc_switch *sw) {
    if (!sw->unsent_count) return 0;
    int broken = sa_udp_send(sw->udp, sw->unsent, sw->unsent_count);
    if (broken) return broken;
    while (sw->unsent_count && sw->unsent->accepted == sw->unsent->rows) {
        sw->unsent++;
        sw->unsent_count--;
    }
    if (sw->unsent_count) {
        sw->unsent->bytes += (size_t)sw->unsent->accepted * sw->unsent->size;
        sw->unsent->rows -= sw->unsent->accepted;
    }
    return 0;
}

/* Lay out what waits, and send what the socket takes of it. 0 or -errno. */
static int send_all(struct sa_uc_switch *sw) {
    /* During a receive the socket may still be full: what it had no room for is dropped; workers ask for it again. */
    for (uint32_t i = 0; i < sw->unsent_count; i++) sa_uc_plane_lost(sw->rdma, sw->unsent[i].rows);
    /* A bundle's packets have identifications of their own; single ones have none (roce.h). */
    uint32_t segments = sa_udp_state(sw->udp)->gso ? sw->segments : 1;
    sw->unsent_count = sa_uc_plane_lay_out(sw->rdma, segments, &sw->unsent);
    return send_unsent(sw);
}

/* Returns the number of arrivals, or -errno. */
static int receive(struct sa_uc_switch *sw) {
    const struct sa_udp_arrival *arrivals;
    int count = sa_udp_receive(sw->udp, &arrivals);
    int64_t now_ns = sa_now_ns();
    for (int i = 0; i < count; i++) {
        const struct sa_udp_arrival *arrival = &arrivals[i];
        uint8_t *datagram = arrival->bytes;
        for (uint32_t row = 0; row < arrival->rows; row++, datagram += arrival->size) {
            bool room = sa_uc_plane_take(sw->rdma, datagram, arrival->size, arrival->sender, arrival->tos, row, now_ns);
            if (room) continue;
            int broken = send_all(sw);
            if (broken) return broken;
        }
    }
    return count;
}

int sa_uc_switch_run(struct sa_uc_switch *sw, int64_t until_ns) {
    for (uint32_t iteration = 1;; iteration++) {
        int arrived = 0, broken = send_unsent(sw);
        if (broken) return broken;
        if (!sw->unsent_count) {
            arrived = receive(sw);
            if (arrived < 0) return arrived;
            broken = send_all(sw);
            if (broken) return broken;
        }
        if (sa_now_ns() >= until_ns) return 0;
        if (arrived && iteration % ITERATIONS_PER_CHECK) continue;
        int woken = sa_udp_wait(sw->udp, sw->wake, arrived ? 0 : until_ns, sw->unsent_count > 0);
        if (woken < 0) return woken;
        if (woken & SA_WOKE_CALLED) return 1;
    }
}
