/* The tags of a switch's packets (A1 to A5), for switch.c. */
#pragma once

#include "transport/native/network/switch_state.h"

/* The hop whose tag a packet that we send gets, or NULL. */
struct sa_hop *sa_switch_hop_of(const struct sa_switch *sw, const uint8_t *packet);

/* Whether a datagram may go to the data plane; then *size is without its tag. Else it is counted. */
bool sa_switch_verify(struct sa_switch *sw, const uint8_t *datagram, uint32_t *size);

/* Write the tags of a group's results for one of its ports where the next message's are, and return them. */
const uint8_t *sa_switch_write_tags(struct sa_switch *sw, const struct group *group, uint32_t port);
