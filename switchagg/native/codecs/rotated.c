/* Lanes of a rotated row: F14, bit for bit as switchagg/codecs/rotated/rows.py. The lanes' own codec is given the
   row in units of the greatest value that is sent. */
#include <stdbool.h>

#include "switchagg/native/codecs/rotation.h"

#define UNIT_CODE 0x3f80 /* the code of 1 */

/* The greatest value that is sent, in rms: of so many a share of 4^-b is larger, b the bits of h. */
static double reach(uint32_t half) {
    static const double of_bits[] = {1.150, 1.863, 2.418, 2.886, 3.297, 3.668, 4.009, 4.325,
                                     4.621, 4.901, 5.167, 5.420, 5.663, 5.896, 6.121};
    return of_bits[31 - __builtin_clz(half)];
}

static void encode(const struct sa_codec *lanes, const struct sa_coding *coding, const uint8_t *values, uint32_t count,
                   uint64_t number, int16_t code, uint8_t *payload) {
    bool blank = code == SA_CODE_GREATEST;
    const float *row = blank ? sa_rotation_row() : sa_rotated(coding, values, count, code, reach(coding->half));
    lanes->encode(coding, (const uint8_t *)row, coding->width, number, blank ? code : UNIT_CODE, payload);
}

static void decode(const struct sa_codec *lanes, const struct sa_coding *coding, uint8_t *values, uint32_t count,
                   int16_t code, const uint8_t *payload) {
    float *row = sa_rotation_row();
    lanes->decode(coding, (uint8_t *)row, coding->width, UNIT_CODE, payload);
    sa_from_rotated(coding, row, values, count, code, reach(coding->half));
}

#define ROTATED(bits)                                                                                         \
    extern const struct sa_codec sa_lanes##bits;                                                              \
    static uint32_t width##bits(const struct sa_coding *coding) { return 32 / bits * coding->elements; }      \
    static void encode##bits(const struct sa_coding *coding, const uint8_t *values, uint32_t count,           \
                             uint64_t number, int16_t code, uint8_t *payload) {                               \
        encode(&sa_lanes##bits, coding, values, count, number, code, payload);                                \
    }                                                                                                         \
    static void decode##bits(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,   \
                             const uint8_t *payload) {                                                        \
        decode(&sa_lanes##bits, coding, values, count, code, payload);                                        \
    }                                                                                                         \
    const struct sa_codec sa_rotated##bits = {                                                                \
        .name = "rotated" #bits,                                                                              \
        .rounds = 1,                                                                                          \
        .lane_bits = bits,                                                                                    \
        .rounding = bits < 16 ? SA_RANDOM : SA_NEAREST,                                                       \
        .width = width##bits,                                                                                 \
        .prepare = sa_rms_code,                                                                               \
        .encode = encode##bits,                                                                               \
        .decode = decode##bits,                                                                               \
    };

ROTATED(16)
ROTATED(10)
ROTATED(8)
ROTATED(6)
ROTATED(5)
ROTATED(4)
