#include "switchagg/native/rule/mask.h"

#include "switchagg/native/abi.h"

#define BLOCK 16u /* words of a block of ChaCha20 */
#define STRIP 24u /* blocks of each keystream at a time: of 360 elements all, and whole vectors of 16 blocks of the two */

typedef uint32_t __attribute__((aligned(1), may_alias)) word_at;

SA_EXPORT struct sa_mask_key sa_mask_key_of(const uint8_t *bytes) {
    struct sa_mask_key key = {{0}};
    for (uint32_t i = 0; i < SA_MASK_KEY_BYTES; i++) key.words[i / 4] |= (uint32_t)bytes[i] << 8 * (i % 4);
    return key;
}

SA_INLINE uint32_t rotated(uint32_t x, uint32_t bits) { return x << bits | x >> (32 - bits); }

#define QUARTER(a, b, c, d) \
    a += b, d = rotated(d ^ a, 16), c += d, b = rotated(b ^ c, 12), a += b, d = rotated(d ^ a, 8), c += d, \
    b = rotated(b ^ c, 7)
#define TWO_ROUNDS \
    QUARTER(x0, x4, x8, x12), QUARTER(x1, x5, x9, x13), QUARTER(x2, x6, x10, x14), QUARTER(x3, x7, x11, x15), \
    QUARTER(x0, x5, x10, x15), QUARTER(x1, x6, x11, x12), QUARTER(x2, x7, x8, x13), QUARTER(x3, x4, x9, x14)
#define LANES (2 * STRIP)

/* words[i][l] = word i of block first + l of the keystream with nonces[0], or, of l from STRIP on, of block
   first + l - STRIP of that with nonces[1]; nonces: the last word. A lane of a vector is a block; the rounds stand in
   line and nothing branches, as compilers vectorise only such loops. */
SA_VECTORISED static void keystreams(struct sa_mask_key key, uint64_t chunk, uint32_t nonce, uint32_t step,
                                     uint32_t first, uint32_t (*restrict words)[LANES]) {
    uint32_t low = (uint32_t)chunk, high = (uint32_t)(chunk >> 32);
    uint32_t k0 = key.words[0], k1 = key.words[1], k2 = key.words[2], k3 = key.words[3];
    uint32_t k4 = key.words[4], k5 = key.words[5], k6 = key.words[6], k7 = key.words[7];
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t second = l >= STRIP, counter = first + l - STRIP * second, last = nonce + step * second;
        uint32_t x0 = 0x61707865, x1 = 0x3320646e, x2 = 0x79622d32, x3 = 0x6b206574;
        uint32_t x4 = k0, x5 = k1, x6 = k2, x7 = k3, x8 = k4, x9 = k5, x10 = k6, x11 = k7;
        uint32_t x12 = counter, x13 = low, x14 = high, x15 = last;
        TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS;
        TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS, TWO_ROUNDS;
        words[0][l] = x0 + 0x61707865, words[1][l] = x1 + 0x3320646e, words[2][l] = x2 + 0x79622d32;
        words[3][l] = x3 + 0x6b206574, words[4][l] = x4 + k0, words[5][l] = x5 + k1, words[6][l] = x6 + k2;
        words[7][l] = x7 + k3, words[8][l] = x8 + k4, words[9][l] = x9 + k5, words[10][l] = x10 + k6;
        words[11][l] = x11 + k7, words[12][l] = x12 + counter, words[13][l] = x13 + low, words[14][l] = x14 + high;
        words[15][l] = x15 + last;
    }
}

SA_VECTORISED static void combine(const word_at *words, uint32_t count, const uint32_t *restrict added,
                                  const uint32_t *restrict subtracted, word_at *out) {
    for (uint32_t i = 0; i < count; i++) out[i] = SA_BE32(SA_BE32(words[i]) + added[i] - subtracted[i]);
}

SA_EXPORT void sa_mask(const struct sa_mask_key *key, uint64_t chunk, uint32_t stream, uint32_t added,
                       uint32_t subtracted, const uint8_t *payload, uint32_t count, uint8_t *out) {
    uint32_t words[BLOCK][LANES], nonce = added | stream << 16;
    uint32_t blocks = (count + BLOCK - 1) / BLOCK;
    for (uint32_t first = 0; first < blocks; first += STRIP) {
        uint32_t wide = blocks - first < STRIP ? blocks - first : STRIP;
        keystreams(*key, chunk, nonce, subtracted - added, first, words);
        for (uint32_t i = 0, at = first; i < BLOCK && at < count; i++, at += blocks)
            combine((const word_at *)payload + at, count - at < wide ? count - at : wide, words[i], words[i] + STRIP,
                    (word_at *)out + at);
    }
}
