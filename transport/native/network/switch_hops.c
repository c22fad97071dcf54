/* See switch_hops.h. */
#include "transport/native/network/switch_hops.h"

#include <stddef.h>
#include <string.h>

#include "switchagg/native/abi.h"

SA_EXPORT void sa_switch_authenticate(struct sa_switch *sw, uint32_t job_id, struct sa_hop *children,
                                      struct sa_hop *parent) {
    struct hops *hops = &sw->hops[job_id % SA_JOBS];
    sa_hop_free(hops->children);
    sa_hop_free(hops->parent);
    *hops = (struct hops){children, parent};
}

static const struct hops *hops_of(const struct sa_switch *sw, const struct sa_header *header) {
    return &sw->hops[SA_BE16(header->job)];
}

struct sa_hop *sa_switch_hop_of(const struct sa_switch *sw, const uint8_t *packet) {
    struct sa_header header;
    memcpy(&header, packet, sizeof header);
    const struct hops *hops = hops_of(sw, &header);
    return SA_BE32(header.kind) & SA_RESULT ? hops->children : hops->parent;
}

bool sa_switch_verify(struct sa_switch *sw, const uint8_t *datagram, uint32_t *size) {
    struct sa_header header;
    if (*size < sizeof header) return true; /* it is of no job */
    memcpy(&header, datagram, sizeof header);
    bool is_result = SA_BE32(header.kind) & SA_RESULT;
    uint32_t child = is_result ? 0 : header.rank & SA_RANK_BITS;
    struct sa_hop *hop = is_result ? hops_of(sw, &header)->parent : hops_of(sw, &header)->children;
    if (!hop) return true;
    if (!sa_hop_verify(hop, datagram, *size, is_result, child)) {
        sw->counters[SA_SWITCH_DROP_UNAUTHENTICATED]++;
        return false;
    }
    *size -= SA_HOP_TAG_BYTES;
    return true;
}

const uint8_t *sa_switch_write_tags(struct sa_switch *sw, const struct group *group, uint32_t port) {
    uint8_t(*tags)[SA_HOP_TAG_BYTES] = sw->tags[sw->message_count];
    uint32_t child = sa_hop_child_at(group->hop, port);
    for (uint32_t row = 0; row < group->rows; row++)
        sa_hop_write_tag(group->hop, sw->frames[group->first + row], sw->hashes[group->first + row], child, tags[row]);
    return tags[0];
}
