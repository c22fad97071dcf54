/* int32 whose sums don't wrap on the wire though those of the values do: F18, bit for bit as
   switchagg/codecs/split.py. */
#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

extern const struct sa_codec sa_plain;

/* A row: the low bits of its values, then words of lanes with their high bits. */
struct row {
    uint32_t low_bits, lane_bits, lanes; /* in a word */
    uint32_t words;                      /* of lanes */
};

static uint32_t lanes_of(const struct sa_coding *coding) { return 32 / (2 * coding->headroom); }

static struct row row_of(const struct sa_coding *coding) {
    uint32_t lanes = lanes_of(coding);
    return (struct row){32 - coding->headroom, 2 * coding->headroom, lanes, (coding->width + lanes - 1) / lanes};
}

static uint32_t width(const struct sa_coding *coding) {
    if (!coding->headroom) return coding->elements;
    uint32_t lanes = lanes_of(coding);
    return (uint32_t)((uint64_t)coding->elements * lanes / (lanes + 1));
}

SA_VECTORISED static void put_low(const sa_uint32_at *restrict values, uint32_t count, uint32_t mask,
                                  sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) out[i] = SA_BE32(values[i] & mask);
}

SA_VECTORISED static void add_lane(const sa_uint32_at *restrict values, uint32_t count, uint32_t low_bits,
                                   uint32_t shift, sa_uint32_at *restrict out) {
    for (uint32_t i = 0; i < count; i++) out[i] |= SA_BE32(values[i] >> low_bits << shift);
}

SA_VECTORISED static void join(sa_uint32_at *restrict values, uint32_t count, uint32_t low_bits, uint32_t shift,
                               uint32_t mask, const sa_uint32_at *restrict lows, const sa_uint32_at *restrict lanes) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t low = lows[i], word = lanes[i];
        values[i] = SA_BE32(low) + ((SA_BE32(word) >> shift & mask) << low_bits);
    }
}

/* How many of `count` values have lane `lane`. */
static uint32_t in_lane(const struct row *row, uint32_t lane, uint32_t count) {
    uint32_t first = lane * row->words;
    if (count <= first) return 0;
    return count - first < row->words ? count - first : row->words;
}

static void encode(const struct sa_coding *coding, const uint8_t *values, uint32_t count, uint64_t number,
                   int16_t code, uint8_t *payload) {
    if (!coding->headroom) {
        sa_plain.encode(coding, values, count, number, code, payload);
        return;
    }
    struct row row = row_of(coding);
    const sa_uint32_at *bits = (const sa_uint32_at *)values;
    sa_uint32_at *out = (sa_uint32_at *)payload;
    sa_fetch_ahead(coding, values);
    memset(out + count, 0, 4ull * (coding->elements - count));
    put_low(bits, count, UINT32_MAX >> coding->headroom, out);
    for (uint32_t lane = 0; lane < row.lanes; lane++)
        add_lane(bits + (uint64_t)lane * row.words, in_lane(&row, lane, count), row.low_bits, lane * row.lane_bits, out + coding->width);
}

static void decode(const struct sa_coding *coding, uint8_t *values, uint32_t count, int16_t code,
                   const uint8_t *payload) {
    if (!coding->headroom) {
        sa_plain.decode(coding, values, count, code, payload);
        return;
    }
    struct row row = row_of(coding);
    const sa_uint32_at *sums = (const sa_uint32_at *)payload;
    sa_fetch_ahead(coding, values);
    for (uint32_t lane = 0; lane < row.lanes; lane++) {
        uint64_t first = (uint64_t)lane * row.words;
        join((sa_uint32_at *)values + first, in_lane(&row, lane, count), row.low_bits, lane * row.lane_bits,
             (uint32_t)((1ull << row.lane_bits) - 1), sums + first, sums + coding->width);
    }
}

const struct sa_codec sa_split = {.name = "split", .width = width, .encode = encode, .decode = decode};
