/* Bytes that a switch only stores, as they are and in their order, as switchagg/codecs/raw.py (W14). */
#include <string.h>

#include "switchagg/native/codecs/codec.h"

static uint32_t width(const struct sa_coding *coding) { return 4 * coding->elements; }

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    (void)number, (void)code;
    memcpy(payload, values, count);
    memset(payload + count, 0, coding->width - count);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    (void)coding, (void)code;
    memcpy(values, payload, count);
}

const struct sa_codec sa_raw = {.name = "raw", .width = width, .encode = encode, .decode = decode};
