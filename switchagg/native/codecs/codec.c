#include "codecs/codec.h"

#include <string.h>

#include "abi.h"

/* A new codec: its file, and a line here. */
#define SA_CODECS(CODEC) \
    CODEC(fixed_point)   \
    CODEC(plain)

#define DECLARED(name) extern const struct sa_codec sa_##name;
#define LISTED(name) &sa_##name,

SA_CODECS(DECLARED)
static const struct sa_codec *const codecs[] = {SA_CODECS(LISTED)};

SA_EXPORT int sa_codec_number(const char *name) {
    for (uint32_t number = 0; number < sizeof codecs / sizeof *codecs; number++)
        if (!strcmp(codecs[number]->name, name)) return (int)number;
    return -1;
}

SA_EXPORT void sa_coding_begin(struct sa_coding *coding, uint32_t codec, uint32_t dtype, uint32_t elements,
                               uint32_t workers) {
    *coding = (struct sa_coding){
        .codec = codecs[codec],
        .dtype = (enum sa_dtype)dtype,
        .elements = elements,
        .width = codecs[codec]->width((enum sa_dtype)dtype, elements),
        .workers = workers,
    };
}

static uint64_t bytes_before(const struct sa_coding *coding, uint64_t row) {
    return row * coding->width * sa_value_bytes(coding->dtype);
}

static uint32_t values_in(const struct sa_coding *coding, uint64_t row, uint64_t count) {
    uint64_t rest = count - row * coding->width;
    return rest < coding->width ? (uint32_t)rest : coding->width;
}

SA_EXPORT void sa_codec_prepare(const struct sa_coding *coding, const uint8_t *values, uint64_t count,
                                int32_t *codes) {
    for (uint64_t row = 0; row * coding->width < count; row++)
        codes[row] =
            coding->codec->prepare(coding, values + bytes_before(coding, row), values_in(coding, row, count));
}

SA_EXPORT void sa_codec_encode(const struct sa_coding *coding, const uint8_t *values, uint64_t count,
                               const int16_t *codes, uint8_t *out, uint64_t stride) {
    for (uint64_t row = 0; row * coding->width < count; row++)
        coding->codec->encode(coding, values + bytes_before(coding, row), values_in(coding, row, count), codes[row],
                              out + row * stride);
}

SA_EXPORT void sa_codec_decode(const struct sa_coding *coding, uint8_t *values, uint64_t count, const int16_t *codes,
                               const uint8_t *sums, uint64_t stride) {
    for (uint64_t row = 0; row * coding->width < count; row++)
        coding->codec->decode(coding, values + bytes_before(coding, row), values_in(coding, row, count), codes[row],
                              sums + row * stride);
}
