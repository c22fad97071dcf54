/* Masks of secret sums (X2): a rank adds to the words of a chunk the difference of two keystreams of
   ChaCha20 (RFC 8439), which sums of all ranks' words have left of the first and the last keystream alone. Twin of
   switchagg/calls/mask.py. */
#pragma once

#include <stdint.h>

#include "switchagg/native/rule/wire.h"

#define SA_MASK_KEY_BYTES 32u

struct sa_mask_key {
    uint32_t words[SA_MASK_KEY_BYTES / 4];
};

/* bytes: SA_MASK_KEY_BYTES. */
struct sa_mask_key sa_mask_key_of(const uint8_t *bytes);

/* Write the first `count` words of a payload, big-endian and of any alignment, plus keystream `added` minus keystream
   `subtracted` of the chunk, to `out`, which may be `payload`. The keystreams' indexes have 16 bits, the stream 8. */
void sa_mask(const struct sa_mask_key *key, uint64_t chunk, uint32_t stream, uint32_t added, uint32_t subtracted,
             const uint8_t *payload, uint32_t count, uint8_t *out);
