#include "switchagg/native/rule/tag.h"

#include <string.h>

#include "switchagg/native/abi.h"

#ifdef SA_CLONED
#include <immintrin.h>
#endif

/* ---- SipHash-2-4, of two messages at once: each step needs the one before, so that two take hardly longer */

typedef uint64_t pair __attribute__((vector_size(16)));

SA_INLINE pair rotated(pair x, uint32_t bits) { return x << bits | x >> (64 - bits); }

SA_INLINE void sip_round(pair v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = rotated(v[1], 13) ^ v[0], v[3] = rotated(v[3], 16) ^ v[2];
    v[0] = rotated(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotated(v[1], 17) ^ v[2], v[3] = rotated(v[3], 21) ^ v[0];
    v[2] = rotated(v[2], 32);
}

SA_INLINE void sip_compress(pair v[4], pair word) {
    v[3] ^= word;
    sip_round(v), sip_round(v);
    v[0] ^= word;
}

SA_INLINE pair siphash(const struct sa_tag_key *key, const pair *words, uint32_t count) {
    pair low = {key->halves[0], key->halves[0]}, high = {key->halves[1], key->halves[1]};
    pair v[4] = {low ^ 0x736f6d6570736575u, high ^ 0x646f72616e646f6du, low ^ 0x6c7967656e657261u, high ^ 0x7465646279746573u};
    for (uint32_t i = 0; i < count; i++) sip_compress(v, words[i]);
    sip_compress(v, (pair){} + ((uint64_t)(8 * count) << 56));
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

SA_EXPORT uint64_t sa_siphash(const struct sa_tag_key *key, const uint64_t *words, uint32_t count) {
    pair twice[SA_SIPHASH_WORDS_MAX];
    for (uint32_t i = 0; i < count; i++) twice[i] = (pair){words[i], words[i]};
    return siphash(key, twice, count)[0];
}

struct sa_tag_key sa_tag_key_of(const uint8_t *bytes) {
    struct sa_tag_key key = {{0, 0}};
    for (uint32_t i = 0; i < SA_KEY_BYTES; i++) key.halves[i / 8] |= (uint64_t)bytes[i] << 8 * (i % 8);
    return key;
}

SA_INLINE uint64_t below_prime(uint64_t number) {
    number >>= 64 - SA_TAG_BITS;
    return number == SA_TAG_PRIME ? 0 : number;
}

SA_VECTORISED static pair randoms(const struct sa_tag_key *key, uint64_t chunk, uint64_t first, uint64_t second) {
    pair words[] = {{chunk, chunk}, {first, second}};
    return siphash(key, words, 2);
}

static uint64_t word_of(uint32_t stream, uint32_t domain, uint32_t index, int32_t code) {
    return stream | domain << 8 | index << 16 | (uint64_t)(uint32_t)code << 32;
}

SA_EXPORT uint64_t sa_tag_random(const struct sa_tag_key *key, uint64_t chunk, uint32_t stream, uint32_t domain,
                                 uint32_t index, int32_t code) {
    uint64_t word = word_of(stream, domain, index, code);
    return below_prime(randoms(key, chunk, word, word)[0]);
}

uint64_t sa_tag_pads(const struct sa_tag_key *key, uint64_t chunk, uint32_t stream, uint32_t first, uint32_t end,
                     int32_t code) {
    pair pads = randoms(key, chunk, word_of(stream, SA_TAG_PAD, first, code), word_of(stream, SA_TAG_PAD, end, code));
    return sa_tag_subtract(below_prime(pads[0]), below_prime(pads[1]));
}

/* ---- the linear hash */

typedef uint32_t __attribute__((aligned(1), may_alias)) word_at;

#define BLOCK (1u << (64 - 32 - SA_TAG_LIMB_BITS)) /* words of which products with a limb add up to fewer than 2^64 */

/* Adds to sums[k] the words, with `flipped` bits, times limb k of their coefficients. Three products with limbs of 21 bits were
   the fastest of what was measured: two of 31 bits, whose sums need both halves of each product, take as long, and 128-bit
   sums of whole products, which no vector unit adds, twice as long. */
static void add_products(const word_at *restrict words, uint32_t count, uint32_t flipped,
                         const uint32_t *const limbs[SA_TAG_LIMBS], uint64_t *restrict sums) {
    const uint32_t *low = limbs[0], *middle = limbs[1], *high = limbs[2];
    uint64_t lows = 0, middles = 0, highs = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = words[i], word = SA_BE32(value) ^ flipped;
        lows += (uint64_t)word * low[i];
        middles += (uint64_t)word * middle[i];
        highs += (uint64_t)word * high[i];
    }
    sums[0] += lows, sums[1] += middles, sums[2] += highs;
}

#ifdef SA_CLONED
#define LANES 8u

/* The same of whole vectors, not of all words; returns of how many. A compiler takes longer by a half: it widens both factors,
   of which the instruction takes every second one anyway. */
__attribute__((target("avx2"))) static uint32_t add_vectors(const word_at *words, uint32_t count, uint32_t flipped,
                                                            const uint32_t *const limbs[SA_TAG_LIMBS], uint64_t *sums) {
    const __m256i swap = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203));
    const __m256i flip = _mm256_set1_epi32((int)flipped);
    __m256i totals[SA_TAG_LIMBS];
    uint32_t i = 0;
    for (uint32_t k = 0; k < SA_TAG_LIMBS; k++) totals[k] = _mm256_setzero_si256();
    for (; i + LANES < count; i += LANES) {
        __m256i even = _mm256_xor_si256(_mm256_shuffle_epi8(_mm256_loadu_si256((const void *)(words + i)), swap), flip);
        __m256i odd = _mm256_srli_epi64(even, 32);
        for (uint32_t k = 0; k < SA_TAG_LIMBS; k++) {
            const uint32_t *limb = limbs[k] + i;
            __m256i product = _mm256_mul_epu32(even, _mm256_loadu_si256((const void *)limb));
            __m256i next = _mm256_mul_epu32(odd, _mm256_loadu_si256((const void *)(limb + 1)));
            totals[k] = _mm256_add_epi64(totals[k], _mm256_add_epi64(product, next));
        }
    }
    for (uint32_t k = 0; k < SA_TAG_LIMBS; k++) {
        uint64_t parts[LANES / 2];
        _mm256_storeu_si256((void *)parts, totals[k]);
        for (uint32_t lane = 0; lane < LANES / 2; lane++) sums[k] += parts[lane];
    }
    return i;
}
#endif

static void hash_block(const word_at *words, uint32_t count, uint32_t flipped, const uint32_t *limbs[SA_TAG_LIMBS],
                       uint64_t *sums) {
#ifdef SA_CLONED
    if (__builtin_cpu_supports("avx2")) {
        uint32_t done = add_vectors(words, count, flipped, limbs, sums);
        for (uint32_t k = 0; k < SA_TAG_LIMBS; k++) limbs[k] += done;
        words += done;
        count -= done;
    }
#endif
    add_products(words, count, flipped, limbs, sums);
}

#ifdef SA_CLONED
#define WIDE_LANES 8u
#define WIDE_BLOCK 2048u /* words of which products' low halves, fewer than 2^52 each, add up to fewer than 2^64 in all lanes */

/* The low halves of 8 words' products with coefficients go to sums[0], high halves to sums[1], products with their top
   bits to sums[2]. swap: takes the words out of a vector, with zeros between. */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512ifma"))) SA_INLINE void add_wide(
    __m512i words, __m512i swap, __m512i flip, const uint64_t *wide, const uint64_t *top, __m512i sums[3]) {
    const __mmask64 not_zero = 0x0f0f0f0f0f0f0f0f;
    __m512i word = _mm512_xor_si512(_mm512_maskz_permutexvar_epi8(not_zero, swap, words), flip);
    __m512i coefficient = _mm512_load_si512(wide);
    sums[0] = _mm512_madd52lo_epu64(sums[0], word, coefficient);
    sums[1] = _mm512_madd52hi_epu64(sums[1], word, coefficient);
    sums[2] = _mm512_madd52lo_epu64(sums[2], word, _mm512_load_si512(top));
}

/* The hash of a block, modulo the prime, where one instruction multiplies numbers of 52 bits and adds half of the product:
   three for 8 words in place of six. */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512ifma"))) static uint64_t hash_wide(
    const word_at *words, uint32_t count, uint32_t flipped, const uint64_t *wide, const uint64_t *top) {
    const __m512i first = _mm512_set_epi64(0x1c1d1e1f, 0x18191a1b, 0x14151617, 0x10111213, 0x0c0d0e0f, 0x08090a0b,
                                           0x04050607, 0x00010203);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi64(0x20202020));
    const __m512i flip = _mm512_set1_epi64(flipped);
    __m512i sums[2][3]; /* by half of the vector: no addition waits for another of the same vector */
    for (uint32_t half = 0; half < 2; half++) sums[half][0] = sums[half][1] = sums[half][2] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < count; i += 2 * WIDE_LANES) {
        uint32_t left = count - i, all = left < 2 * WIDE_LANES ? (1u << left) - 1 : 0xffffu;
        __m512i vector = _mm512_maskz_loadu_epi32((__mmask16)all, words + i);
        add_wide(vector, first, flip, wide + i, top + i, sums[0]);
        add_wide(vector, second, flip, wide + i + WIDE_LANES, top + i + WIDE_LANES, sums[1]);
    }
    uint64_t low = (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(sums[0][0], sums[1][0]));
    __m512i highs = _mm512_add_epi64(_mm512_add_epi64(sums[0][1], sums[1][1]), _mm512_add_epi64(sums[0][2], sums[1][2]));
    uint64_t high = (uint64_t)_mm512_reduce_add_epi64(highs);
    return sa_tag_add(sa_tag_reduce(low), sa_tag_shift(high, SA_HASH_WIDE_BITS));
}

#endif

static bool can_be_wide(void) {
#ifdef SA_CLONED
    return __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vbmi");
#else
    return false;
#endif
}

static uint32_t padded(uint32_t count) { return (count + SA_HASH_PADDING - 1) / SA_HASH_PADDING * SA_HASH_PADDING; }

static uint64_t hash_of(const struct sa_linear_hash *hash, const uint8_t *payload, uint32_t count, uint32_t flipped) {
    const word_at *words = (const word_at *)payload;
    uint64_t total = 0;
#ifdef SA_CLONED
    const uint64_t *wide = (const void *)hash->coefficients, *top = wide + padded(hash->count);
    for (uint32_t at = 0; hash->wide && at < count; at += WIDE_BLOCK)
        total = sa_tag_add(total, hash_wide(words + at, count - at < WIDE_BLOCK ? count - at : WIDE_BLOCK, flipped,
                                            wide + at, top + at));
    if (hash->wide) return total;
#endif
    for (uint32_t at = 0; at < count; at += BLOCK) {
        const uint32_t *low = hash->coefficients + at, *limbs[] = {low, low + hash->count, low + 2 * hash->count};
        uint64_t sums[SA_TAG_LIMBS] = {0};
        hash_block(words + at, count - at < BLOCK ? count - at : BLOCK, flipped, limbs, sums);
        for (uint32_t limb = 0; limb < SA_TAG_LIMBS; limb++)
            total = sa_tag_add(total, sa_tag_shift(sums[limb], SA_TAG_LIMB_BITS * limb));
    }
    return total;
}

SA_EXPORT uint64_t sa_hash_unsigned(const struct sa_linear_hash *hash, const uint8_t *payload, uint32_t count) {
    return hash_of(hash, payload, count, 0);
}

SA_EXPORT uint64_t sa_hash_signed(const struct sa_linear_hash *hash, const uint8_t *payload) {
    return sa_tag_subtract(hash_of(hash, payload, hash->count, 1u << 31), hash->below_zero);
}

SA_EXPORT void sa_linear_hash_init(struct sa_linear_hash *hash, const struct sa_tag_key *key, uint32_t count,
                                   uint32_t *memory, bool wide) {
    uint32_t *coefficients = (void *)(((uintptr_t)memory + 63u) & ~(uintptr_t)63u);
    uint64_t total = 0, *wides = (void *)coefficients, *tops = wides + padded(count);
    wide = wide && can_be_wide();
    memset(coefficients, 0, sizeof(uint64_t[2]) * padded(count));
    for (uint32_t j = 0; j < count; j++) {
        uint64_t coefficient = sa_tag_random(key, j, 0, SA_TAG_COEFFICIENT, 0, 0);
        total = sa_tag_add(total, coefficient);
        if (wide) wides[j] = coefficient, tops[j] = coefficient >> SA_HASH_WIDE_BITS;
        for (uint32_t limb = 0; limb < SA_TAG_LIMBS && !wide; limb++)
            coefficients[limb * count + j] = (uint32_t)(coefficient >> SA_TAG_LIMB_BITS * limb) & SA_TAG_LIMB_MASK;
    }
    *hash = (struct sa_linear_hash){count, wide, coefficients, sa_tag_shift(total, 31)};
}
