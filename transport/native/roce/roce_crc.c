#include "transport/native/roce/roce_crc.h"

#include <stdbool.h>
#include <string.h>

#include "switchagg/native/abi.h"

#define POLYNOMIAL 0xedb88320u
#define UNIT 0x80000000u /* x^0 */
#define SLICES 16u

static uint32_t tables[SLICES][256];
static uint32_t unshifts[32]; /* x^(-8 * 2^i) */

uint32_t sa_crc32_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = UNIT; bit; bit >>= 1) {
        product ^= b & (0u - !!(a & bit));
        b = b >> 1 ^ (POLYNOMIAL & (0u - (b & 1u)));
    }
    return product;
}

uint32_t sa_crc32_unshift(uint32_t bytes) {
    uint32_t product = UNIT;
    for (uint32_t i = 0; bytes; i++, bytes >>= 1)
        if (bytes & 1u) product = sa_crc32_multiply(product, unshifts[i]);
    return product;
}

static uint32_t at(const uint8_t *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static uint32_t word(uint32_t value, uint32_t slice) {
    return tables[slice + 3][value & 0xffu] ^ tables[slice + 2][value >> 8 & 0xffu] ^
           tables[slice + 1][value >> 16 & 0xffu] ^ tables[slice][value >> 24];
}

static uint32_t by_tables(uint32_t state, const uint8_t *bytes, size_t size) {
    for (; size >= 16; bytes += 16, size -= 16)
        state = word(state ^ at(bytes), 12) ^ word(at(bytes + 4), 8) ^ word(at(bytes + 8), 4) ^ word(at(bytes + 12), 0);
    if (size >= 8) {
        state = word(state ^ at(bytes), 4) ^ word(at(bytes + 4), 0);
        bytes += 8, size -= 8;
    }
    for (; size; size--) state = state >> 8 ^ tables[0][(state ^ *bytes++) & 0xffu];
    return state;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CARRYLESS 1
#include <immintrin.h>

#define SA_PCLMUL __attribute__((target("pclmul,sse4.1")))

static bool has_pclmul;

/* After Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009: four lanes of 16
   bytes, each folded over the next 64 bytes; then one lane; then 128 bits to 64 to 32 (Barrett). At least 64 bytes, a
   multiple of 16. */
SA_PCLMUL static __m128i fold(__m128i lane, __m128i next, __m128i powers) {
    __m128i low = _mm_clmulepi64_si128(lane, powers, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

SA_PCLMUL static __m128i load(const uint8_t *bytes) { return _mm_loadu_si128((const __m128i *)(const void *)bytes); }

SA_PCLMUL static uint32_t reduce(__m128i lane) {
    const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124), low32 = _mm_set_epi32(0, -1, 0, -1);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    lane = _mm_xor_si128(_mm_clmulepi64_si128(lane, k34, 0x10), _mm_srli_si128(lane, 8));
    lane = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(lane, low32), k5, 0x00), _mm_srli_si128(lane, 4));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, low32), barrett, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(lane, quotient), 1);
}

/* `first`, at least 64 bytes, then `bytes`; both multiples of 16. */
SA_PCLMUL static uint32_t by_folding(uint32_t state, const uint8_t *first, size_t first_bytes, const uint8_t *bytes,
                                     size_t size) {
    const __m128i k12 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i a = _mm_xor_si128(load(first), _mm_cvtsi32_si128((int)state));
    __m128i b = load(first + 16), c = load(first + 32), d = load(first + 48);
    for (first += 64, first_bytes -= 64; first_bytes; first += 16, first_bytes -= 16) {
        __m128i folded = fold(a, load(first), k12); /* the lane that is the oldest now is the next to fold */
        a = b, b = c, c = d, d = folded;
    }
    for (; size >= 64; bytes += 64, size -= 64) {
        a = fold(a, load(bytes), k12);
        b = fold(b, load(bytes + 16), k12);
        c = fold(c, load(bytes + 32), k12);
        d = fold(d, load(bytes + 48), k12);
    }
    a = fold(fold(fold(a, b, k34), c, k34), d, k34);
    for (; size; bytes += 16, size -= 16) a = fold(a, load(bytes), k34);
    return reduce(a);
}
#endif

/* Runs when the library is loaded: before any thread can need the tables. */
__attribute__((constructor)) static void prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (POLYNOMIAL & (0u - (value & 1u)));
        tables[0][i] = value;
    }
    for (uint32_t slice = 1; slice < SLICES; slice++)
        for (uint32_t i = 0; i < 256; i++)
            tables[slice][i] = tables[slice - 1][i] >> 8 ^ tables[0][tables[slice - 1][i] & 0xffu];
    /* x * q = 1 for q = (P + 1) / x; in a register, P without x^32 is POLYNOMIAL and a division by x is a shift left */
    uint32_t power = (POLYNOMIAL ^ UNIT) << 1 | 1u; /* x^-1: degree 31 comes from x^32 */
    for (int i = 0; i < 3; i++) power = sa_crc32_multiply(power, power);
    for (uint32_t i = 0; i < 32; i++, power = sa_crc32_multiply(power, power)) unshifts[i] = power;
#if defined(CARRYLESS)
    __builtin_cpu_init();
    has_pclmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

SA_EXPORT uint32_t sa_crc32_portable(uint32_t crc, const uint8_t *bytes, size_t size) { return ~by_tables(~crc, bytes, size); }

SA_EXPORT uint32_t sa_crc32(uint32_t crc, const uint8_t *bytes, size_t size) {
#if defined(CARRYLESS)
    if (has_pclmul && size >= 64) {
        size_t folded = size & ~(size_t)15;
        uint32_t state = by_folding(~crc, bytes, 64, bytes + 64, folded - 64);
        return ~by_tables(state, bytes + folded, size - folded);
    }
#endif
    return sa_crc32_portable(crc, bytes, size);
}

SA_EXPORT uint32_t sa_crc32_joined(const uint8_t *head, size_t head_bytes, const uint8_t *rest, size_t rest_bytes) {
#if defined(CARRYLESS)
    size_t block = head_bytes <= 64 ? 64 : (head_bytes + 15) & ~(size_t)15, tail_bytes = block - head_bytes;
    if (has_pclmul && head_bytes + rest_bytes >= block) {
        uint8_t first[112];
        memcpy(first, head, head_bytes);
        if (tail_bytes) memcpy(first + head_bytes, rest, tail_bytes);
        size_t folded = (rest_bytes - tail_bytes) & ~(size_t)15;
        uint32_t state = by_folding(0xffffffffu, first, block, rest + tail_bytes, folded);
        return ~by_tables(state, rest + tail_bytes + folded, rest_bytes - tail_bytes - folded);
    }
#endif
    return sa_crc32(sa_crc32(0, head, head_bytes), rest, rest_bytes);
}
