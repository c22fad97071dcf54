/* Integers as they are, bit for bit as switchagg/codecs/plain.py (W3, F6). */
#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

SA_VECTORISED static void swap32(const sa_uint32_at *restrict in, uint32_t count, sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = in[i];
        out[i] = SA_BE32(value);
    }
}

SA_VECTORISED static void split64(const sa_int64_at *restrict values, uint32_t count, sa_uint32_at *restrict out,
                                  uint32_t width) {
    for (uint32_t i = 0; i < count; i++) sa_put_limbs((uint64_t)values[i], out + i, width);
}

SA_VECTORISED static void join64(sa_int64_at *restrict values, uint32_t count, const sa_uint32_at *restrict sums,
                                 uint32_t width) {
    for (uint32_t i = 0; i < count; i++) values[i] = sa_take_limbs(sums + i, width);
}

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    (void)number, (void)code;
    sa_fetch_ahead(coding, values);
    sa_pad(coding, count, payload);
    if (coding->dtype == SA_INT32)
        swap32((const sa_uint32_at *)values, count, (sa_uint32_at *)payload);
    else
        split64((const sa_int64_at *)values, count, (sa_uint32_at *)payload, coding->width);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    (void)code;
    sa_fetch_ahead(coding, values);
    if (coding->dtype == SA_INT32)
        swap32((const sa_uint32_at *)payload, count, (sa_uint32_at *)values);
    else
        join64((sa_int64_at *)values, count, (const sa_uint32_at *)payload, coding->width);
}

const struct sa_codec sa_plain = {.name = "plain", .width = sa_one_per_word, .encode = encode, .decode = decode};

/* int32 whose sums the caller knows not to wrap (V3). */
const struct sa_codec sa_narrow = {.name = "narrow", .width = sa_one_per_word, .encode = encode, .decode = decode};
