/* See hop.h. */
#include "transport/native/network/hop.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"

struct child {
    struct sa_tag_key up;
    struct sa_tag_key down;
    struct sa_linear_hash hash; /* of what it sends */
    uint32_t port;
};

struct sa_hop {
    uint32_t elements;
    uint32_t children_count;
    uint64_t newest[SA_STREAMS_MAX]; /* chunk of each stream, not wrapped */
    struct sa_linear_hash results;
    struct child children[SA_WORKERS_MAX];
    uint32_t coefficients[];
};

SA_EXPORT struct sa_hop *sa_hop_new(uint32_t elements, uint32_t children, const struct sa_hop_keys *keys,
                                    const uint32_t *ports) {
    size_t of_a_hash = SA_HASH_MEMORY(elements);
    struct sa_hop *hop = calloc(1, sizeof *hop + (children + 1) * of_a_hash * sizeof(uint32_t));
    if (!hop) return NULL;
    hop->elements = elements;
    hop->children_count = children;
    struct sa_tag_key results = sa_tag_key_of(keys[0].results);
    sa_linear_hash_init(&hop->results, &results, elements, hop->coefficients, true);
    for (uint32_t i = 0; i < children; i++) {
        struct child *child = &hop->children[i];
        child->up = sa_tag_key_of(keys[i].up);
        child->down = sa_tag_key_of(keys[i].down);
        child->port = ports[i];
        sa_linear_hash_init(&child->hash, &child->up, elements, hop->coefficients + (i + 1) * of_a_hash, true);
    }
    return hop;
}

SA_EXPORT void sa_hop_free(struct sa_hop *hop) { free(hop); }

uint32_t sa_hop_child_at(const struct sa_hop *hop, uint32_t port) {
    uint32_t i = 0;
    while (i < hop->children_count && hop->children[i].port != port) i++;
    return i;
}

/* The eight bytes at any address, as a number in little-endian order. */
static uint64_t little(const uint8_t *from) {
    uint64_t number = 0;
    for (uint32_t i = 0; i < 8; i++) number |= (uint64_t)from[i] << 8 * i;
    return number;
}

static uint64_t big(const uint8_t *from) { return __builtin_bswap64(little(from)); }

static bool is_result(const uint8_t *frame) { return frame[3] & SA_RESULT; }

/* A4: the chunk that is nearest to the newest one of its stream. */
static uint64_t unwrapped(const struct sa_hop *hop, const uint8_t *frame) {
    struct sa_header header;
    memcpy(&header, frame, sizeof header);
    uint64_t newest = hop->newest[header.stream];
    return newest + (uint64_t)(int64_t)(int32_t)(SA_BE32(header.chunk) - (uint32_t)newest);
}

static void note(struct sa_hop *hop, const uint8_t *frame, uint64_t chunk) {
    uint64_t *newest = &hop->newest[frame[offsetof(struct sa_header, stream)]];
    if ((int64_t)(chunk - *newest) > 0) *newest = chunk;
}

static uint64_t tag_of(const struct sa_hop *hop, const uint8_t *frame, uint64_t chunk, uint64_t hash, uint32_t child) {
    const struct child *of = &hop->children[child];
    uint64_t epoch = chunk >> 32 << 32;
    uint64_t words[] = {little(frame), little(frame + 8), (little(frame + 12) >> 32) | epoch};
    uint64_t pad = sa_siphash(is_result(frame) ? &of->down : &of->up, words, 3) >> (64 - SA_TAG_BITS);
    return sa_tag_add(hash, sa_tag_reduce(pad));
}

SA_EXPORT uint64_t sa_hop_hash(const struct sa_hop *hop, const uint8_t *frame, uint32_t size, uint32_t child) {
    const struct sa_linear_hash *hash = is_result(frame) ? &hop->results : &hop->children[child].hash;
    return sa_hash_unsigned(hash, frame + SA_HEADER_BYTES, (size - SA_HEADER_BYTES) / 4);
}

SA_EXPORT bool sa_hop_verify(struct sa_hop *hop, const uint8_t *datagram, uint32_t size, bool result, uint32_t child) {
    if (size < SA_HEADER_BYTES + SA_HOP_TAG_BYTES || child >= hop->children_count) return false;
    struct sa_header header;
    memcpy(&header, datagram, sizeof header);
    uint32_t elements = SA_BE16(header.elements), frame_bytes = SA_HEADER_BYTES + 4 * elements;
    if ((elements && elements != hop->elements) || size != frame_bytes + SA_HOP_TAG_BYTES ||
        is_result(datagram) != result)
        return false;
    uint64_t chunk = unwrapped(hop, datagram), hash = sa_hop_hash(hop, datagram, frame_bytes, child);
    if (tag_of(hop, datagram, chunk, hash, child) != big(datagram + frame_bytes)) return false;
    note(hop, datagram, chunk);
    return true;
}

SA_EXPORT void sa_hop_write_tag(const struct sa_hop *hop, const uint8_t *frame, uint64_t hash, uint32_t child,
                                uint8_t *tag) {
    uint64_t number = tag_of(hop, frame, unwrapped(hop, frame), hash, child);
    for (uint32_t i = 0; i < SA_HOP_TAG_BYTES; i++) tag[i] = (uint8_t)(number >> (56 - 8 * i));
}

SA_EXPORT void sa_hop_note(struct sa_hop *hop, const uint8_t *frame) { note(hop, frame, unwrapped(hop, frame)); }
