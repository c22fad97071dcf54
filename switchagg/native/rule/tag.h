/* The arithmetic of tags (V2) modulo the prime 2^61 - 1: a pseudorandom function, SipHash-2-4, and the linear
   hash of a payload's words, sum of r_j * w_j with coefficients r_j that only holders of the key know. Twin of
   switchagg/tag.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "switchagg/native/rule/wire.h"

#define SA_TAG_BITS 61u
#define SA_TAG_PRIME ((1ull << SA_TAG_BITS) - 1)
#define SA_TAG_LIMBS 3u
#define SA_TAG_LIMB_BITS 21u
#define SA_TAG_LIMB_MASK ((1u << SA_TAG_LIMB_BITS) - 1u)
#define SA_KEY_BYTES 16u

/* What a pseudorandom number of a job's key is for. */
enum sa_tag_domain { SA_TAG_COEFFICIENT, SA_TAG_PAD, SA_TAG_CODE_MARK };

struct sa_tag_key {
    uint64_t halves[2];
};

/* bytes: SA_KEY_BYTES. */
struct sa_tag_key sa_tag_key_of(const uint8_t *bytes);

#define SA_SIPHASH_WORDS_MAX 8u

/* SipHash-2-4 of `count` words, SA_SIPHASH_WORDS_MAX at most, that is of their 8 * count bytes in little-endian order. key: SA_KEY_BYTES, as halves. */
uint64_t sa_siphash(const struct sa_tag_key *key, const uint64_t *words, uint32_t count);

/* A pseudorandom number below the prime; those of different arguments are independent. domain: enum sa_tag_domain. */
uint64_t sa_tag_random(const struct sa_tag_key *key, uint64_t chunk, uint32_t stream, uint32_t domain, uint32_t index,
                       int32_t code);

/* What the ranks `first` ... `end` - 1 add to their tags together: each adds the pad with its number and takes off the next,
   so that all between cancel. */
uint64_t sa_tag_pads(const struct sa_tag_key *key, uint64_t chunk, uint32_t stream, uint32_t first, uint32_t end,
                     int32_t code);

/* Sums and differences of numbers below the prime. */
SA_INLINE uint64_t sa_tag_add(uint64_t a, uint64_t b) {
    uint64_t sum = a + b;
    return sum >= SA_TAG_PRIME ? sum - SA_TAG_PRIME : sum;
}

SA_INLINE uint64_t sa_tag_subtract(uint64_t a, uint64_t b) { return sa_tag_add(a, SA_TAG_PRIME - b); }

/* Any number modulo the prime. */
SA_INLINE uint64_t sa_tag_reduce(uint64_t number) {
    return sa_tag_add(number & SA_TAG_PRIME, number >> SA_TAG_BITS);
}

/* Any number times 2^bits, bits < SA_TAG_BITS. */
SA_INLINE uint64_t sa_tag_shift(uint64_t number, uint32_t bits) {
    uint64_t reduced = sa_tag_reduce(number);
    return sa_tag_reduce((reduced << bits & SA_TAG_PRIME) + (reduced >> (SA_TAG_BITS - bits)));
}

#define SA_HASH_WIDE_BITS 52u
#define SA_HASH_PADDING 16u
#define SA_HASH_MEMORY(count) (4u * ((count) + SA_HASH_PADDING) + 16u) /* uint32_t that coefficients take */

/* The coefficients of a key, for loops over vectors. */
struct sa_linear_hash {
    uint32_t count; /* words of a payload, at most */
    uint32_t wide;  /* 64 bits of each, then from bit SA_HASH_WIDE_BITS on, each padded with zeros to a multiple of
                       SA_HASH_PADDING; 0: SA_TAG_LIMBS of each, the lowest limbs of all first, so that sums of products
                       fit 64 bits */
    uint32_t *coefficients;
    uint64_t below_zero;   /* of `count` words, each INT32_MIN: 2^31 * the sum of the coefficients */
};

/* memory: SA_HASH_MEMORY(count), which must stay as long as the hash is used. wide: if the processor can. */
void sa_linear_hash_init(struct sa_linear_hash *hash, const struct sa_tag_key *key, uint32_t count, uint32_t *memory,
                         bool wide);

/* The hash of a payload's first `count` words, big-endian and of any alignment, read as numbers without a sign. */
uint64_t sa_hash_unsigned(const struct sa_linear_hash *hash, const uint8_t *payload, uint32_t count);

/* The hash of hash->count words, read as numbers in two's complement. */
uint64_t sa_hash_signed(const struct sa_linear_hash *hash, const uint8_t *payload);
