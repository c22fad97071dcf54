#include "transport/native/roce/qp_reorder.h"

#include <stdlib.h>
#include <string.h>

#define DECAY 8 /* what is lost is NAKed the sooner, the more there is of it */

void sa_reorder_reset(struct sa_reorder *reorder) {
    free(reorder->held);
    *reorder = (struct sa_reorder){.gap_ns = SA_REORDER_NONE, .nak_ns = SA_REORDER_NONE};
}

/* Without memory nothing is held, which is what the specification asks for. */
static void hold(struct sa_reorder *reorder, const struct sa_roce_packet *packet, uint32_t mtu) {
    if (packet->payload_bytes > mtu) return; /* to be refused when it is its turn */
    if (!reorder->held) {
        reorder->held = malloc(SA_REORDER_PACKETS * (sizeof *reorder->held + mtu));
        if (!reorder->held) return;
        for (uint32_t i = 0; i < SA_REORDER_PACKETS; i++) reorder->held[i].shape = 0;
    }
    uint32_t at = packet->psn % SA_REORDER_PACKETS;
    struct sa_roce_packet *held = &reorder->held[at];
    if (held->shape) return;
    uint8_t *payload = (uint8_t *)(reorder->held + SA_REORDER_PACKETS) + (size_t)at * mtu;
    *held = *packet;
    held->payload = payload;
    if (packet->payload_bytes) memcpy(payload, packet->payload, packet->payload_bytes);
    reorder->count++;
}

static void open_gap(struct sa_reorder *reorder, uint32_t expected, int64_t now_ns) {
    int64_t wait_ns = reorder->late_ns;
    if (sa_psn_distance(reorder->covered, expected) > 0 && wait_ns < SA_REORDER_AGAIN_NS) wait_ns = SA_REORDER_AGAIN_NS;
    reorder->gap_ns = now_ns;
    reorder->nak_ns = now_ns + wait_ns;
}

void sa_reorder_gap(struct sa_reorder *reorder, const struct sa_roce_packet *packet, uint32_t expected, uint32_t ahead,
                    uint32_t mtu, int64_t now_ns) {
    if (ahead < SA_REORDER_PACKETS) hold(reorder, packet, mtu);
    bool opens = reorder->gap_ns == SA_REORDER_NONE;
    if (opens || sa_psn_distance(packet->psn, reorder->highest) > 0) reorder->highest = packet->psn;
    if (opens) open_gap(reorder, expected, now_ns);
}

/* Gaps last so long without loss. */
static void learn(struct sa_reorder *reorder, int64_t lasted_ns) {
    int64_t late_ns = 2 * lasted_ns < SA_REORDER_MOST_NS ? 2 * lasted_ns : SA_REORDER_MOST_NS;
    if (reorder->late_ns < late_ns) reorder->late_ns = late_ns;
}

void sa_reorder_filled(struct sa_reorder *reorder, int64_t now_ns) {
    if (reorder->gap_ns == SA_REORDER_NONE) return;
    if (reorder->nak_ns == SA_REORDER_NONE)
        reorder->naked_ns = now_ns - reorder->gap_ns;
    else
        learn(reorder, now_ns - reorder->gap_ns);
    reorder->gap_ns = reorder->nak_ns = SA_REORDER_NONE;
}

bool sa_reorder_next(struct sa_reorder *reorder, uint32_t expected, int64_t now_ns, struct sa_roce_packet *packet) {
    if (!reorder->count) return false;
    struct sa_roce_packet *held = &reorder->held[expected % SA_REORDER_PACKETS];
    if (!held->shape) {
        open_gap(reorder, expected, now_ns);
        return false;
    }
    *packet = *held;
    held->shape = 0;
    reorder->count--;
    return true;
}

void sa_reorder_naked(struct sa_reorder *reorder, uint32_t expected) {
    reorder->nak_ns = SA_REORDER_NONE;
    reorder->naked = expected;
    reorder->suspects = true;
    reorder->covered = sa_psn_add(reorder->highest, 1);
    reorder->late_ns -= reorder->late_ns / DECAY;
}

void sa_reorder_repeated(struct sa_reorder *reorder, uint32_t psn) {
    if (!reorder->suspects || psn != reorder->naked) return;
    reorder->suspects = false;
    learn(reorder, reorder->naked_ns);
}
