/* Floats under an exponent that the codec's name says: F22, bit for bit as switchagg/codecs/constant.py.
   A row is one of fixed_point with a word behind its values, which counts the ranks whose values don't fit. */
#include "switchagg/native/codecs/limbs.h"

extern const struct sa_codec sa_fixed_point;

static uint32_t width(const struct sa_coding *coding) { return sa_one_per_word(coding) - 1; }

/* The coding of all words of a row, the last one too. */
static struct sa_coding whole(const struct sa_coding *coding) {
    struct sa_coding row = *coding;
    row.width++;
    return row;
}

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    struct sa_coding row = whole(coding);
    int32_t exponent = coding->codec->exponent;
    int unfit = sa_fixed_point.prepare(coding, values, count) > exponent;
    sa_uint32_at *last = (sa_uint32_at *)payload + coding->width;
    (void)code;
    sa_fixed_point.encode(&row, values, unfit ? 0 : count, number, (int16_t)exponent, payload);
    *last = SA_BE32((uint32_t)unfit);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    struct sa_coding row = whole(coding);
    uint32_t unfit = ((const sa_uint32_at *)payload)[coding->width];
    (void)code;
    sa_fixed_point.decode(&row, values, count, unfit ? SA_CODE_GREATEST : (int16_t)coding->codec->exponent, payload);
}

#define CONSTANT(power)                    \
    const struct sa_codec sa_constant##power = { \
        .name = "constant" #power,         \
        .exponent = power,                 \
        .signed_words = 1,                 \
        .width = width,                    \
        .encode = encode,                  \
        .decode = decode,                  \
    };

CONSTANT(0)
CONSTANT(4)
CONSTANT(8)
CONSTANT(16)
