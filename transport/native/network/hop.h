/* Tags of the packets of one job between a switch and its children (A1 to A5): at the switch of all
   children, at a child its own. Twin of transport/links/hop_tags.py. A single thread at a time may use a hop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "switchagg/native/rule/tag.h"

#define SA_HOP_TAG_BYTES 8u

/* Of one child (A2). */
struct sa_hop_keys {
    uint8_t up[SA_KEY_BYTES];
    uint8_t down[SA_KEY_BYTES];
    uint8_t results[SA_KEY_BYTES]; /* alike for all children */
};

struct sa_hop;

/* elements: of packets with values. ports: of the children, in order. It copies both. NULL: no memory. */
struct sa_hop *sa_hop_new(uint32_t elements, uint32_t children, const struct sa_hop_keys *keys, const uint32_t *ports);
void sa_hop_free(struct sa_hop *hop);

/* Index of the child at a port, or the number of children. */
uint32_t sa_hop_child_at(const struct sa_hop *hop, uint32_t port);

/* Whether a datagram is what this child sent (result: what it was sent), with its tag, which are the last bytes (A4,
   A5). Defined for any bytes. */
bool sa_hop_verify(struct sa_hop *hop, const uint8_t *datagram, uint32_t size, bool result, uint32_t child);

/* The part of a tag that is the values' (A3); of a result it is the same for all children. */
uint64_t sa_hop_hash(const struct sa_hop *hop, const uint8_t *frame, uint32_t size, uint32_t child);

/* The tag of a packet without one, and of its hash, for a child or of it. */
void sa_hop_write_tag(const struct sa_hop *hop, const uint8_t *frame, uint64_t hash, uint32_t child, uint8_t *tag);

/* The child has sent this packet: its chunk may be the newest (A4). */
void sa_hop_note(struct sa_hop *hop, const uint8_t *frame);
