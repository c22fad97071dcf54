#include "switchagg/native/codecs/codec.h"

#include <string.h>

#include "switchagg/native/abi.h"

/* A new codec has a file, and a name here. */
#define SA_CODECS(CODEC) \
    CODEC(fixed_point) CODEC(plain) CODEC(narrow) CODEC(split) CODEC(raw) CODEC(wide_fixed_point) \
    CODEC(constant0) CODEC(constant4) CODEC(constant8) CODEC(constant16) \
    CODEC(lanes16) CODEC(lanes10) CODEC(lanes8) CODEC(lanes6) CODEC(lanes5) CODEC(lanes4) \
    CODEC(rotated16) CODEC(rotated10) CODEC(rotated8) CODEC(rotated6) CODEC(rotated5) CODEC(rotated4) \
    CODEC(thc) CODEC(thc_table) CODEC(fp16) CODEC(bf16) CODEC(qsgd16) CODEC(qsgd10) \
    CODEC(ternary8) CODEC(ternary6) CODEC(ternary5) CODEC(ternary4) \
    CODEC(twobit8) CODEC(twobit6) CODEC(twobit5) CODEC(twobit4) \
    CODEC(onebit8) CODEC(onebit6) CODEC(onebit5) CODEC(onebit4) \
    CODEC(sign8) CODEC(sign6) CODEC(sign5) CODEC(sign4)

#define DECLARED(name) extern const struct sa_codec sa_##name;
#define LISTED(name) &sa_##name,

SA_CODECS(DECLARED)
static const struct sa_codec *const codecs[] = {SA_CODECS(LISTED)};

SA_EXPORT int sa_codec_number(const char *name) {
    for (uint32_t number = 0; number < sizeof codecs / sizeof *codecs; number++)
        if (!strcmp(codecs[number]->name, name)) return (int)number;
    return -1;
}

/* h of lanes (F9, F11, F13). */
static uint32_t half_of(const struct sa_codec *codec, uint32_t workers) {
    uint32_t most = ((1u << codec->lane_bits) - 1) / workers / 2;
    if (codec->levels) return codec->levels;
    return codec->rounding >= SA_FP16 ? 1u << (31 - __builtin_clz(most)) : most;
}

SA_EXPORT void sa_coding_begin(struct sa_coding *coding, uint32_t codec, uint32_t dtype, uint32_t elements,
                               uint32_t workers) {
    *coding = (struct sa_coding){
        .codec = codecs[codec],
        .dtype = (enum sa_dtype)dtype,
        .elements = elements,
        .workers = workers,
        .headroom = workers > 1 ? 32u - (uint32_t)__builtin_clz(workers - 1) : 0,
        .half = half_of(codecs[codec], workers),
        .ranks = workers,
        .random = codecs[codec]->rounding == SA_RANDOM,
    };
    coding->width = coding->codec->width(coding);
}

/* Rows of an array, one after the other; `left`: values from there on. */
struct rows {
    uint64_t left;
    uint32_t width, bytes;
};

static struct rows rows_of(const struct sa_coding *coding, uint64_t count) {
    return (struct rows){count, coding->width, coding->width * sa_value_bytes(coding->dtype)};
}

static inline uint32_t next_of(struct rows *rows) {
    uint32_t count = rows->left < rows->width ? (uint32_t)rows->left : rows->width;
    rows->left -= count;
    return count;
}

SA_EXPORT void sa_codec_prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count,
                                int32_t *codes) {
    struct rows rows = rows_of(coding, count);
    for (; rows.left; values += rows.bytes) *codes++ = coding->codec->prepare(coding, values, next_of(&rows));
}

SA_EXPORT void sa_codec_encode(const struct sa_coding *coding, const uint8_t *values, uint64_t count,
                               const int16_t *codes, uint8_t *out, uint64_t stride) {
    struct rows rows = rows_of(coding, count);
    for (uint64_t number = 0; rows.left; number++, values += rows.bytes, out += stride)
        coding->codec->encode(coding, values, next_of(&rows), number, *codes++, out);
}

SA_EXPORT void sa_codec_decode(const struct sa_coding *coding, uint8_t *values, uint64_t count, const int16_t *codes,
                               const uint8_t *sums, uint64_t stride) {
    struct rows rows = rows_of(coding, count);
    for (; rows.left; values += rows.bytes, sums += stride)
        coding->codec->decode(coding, values, next_of(&rows), *codes++, sums);
}
