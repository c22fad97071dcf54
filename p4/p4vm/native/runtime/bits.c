/* See bits.h. */
#include "bits.h"

uint64_t p4_bits_get(const uint8_t *from, uint64_t at, uint32_t width) {
    if (!width) return 0;
    const uint8_t *byte = from + (at >> 3);
    uint32_t skip = at & 7, bits = skip + width, i = 0;
    uint64_t value = byte[0] & (0xffu >> skip);
    if (bits <= 8) return value >> (8 - bits);
    for (bits -= 8; bits >= 8; bits -= 8) value = value << 8 | byte[++i];
    return bits ? value << bits | byte[i + 1] >> (8 - bits) : value;
}

void p4_bits_put(uint8_t *to, uint64_t at, uint32_t width, uint64_t value) {
    while (width) { /* from the last bits on, to a byte's end each */
        uint64_t last = at + width - 1;
        uint32_t below = 7 - (last & 7), count = 8 - below < width ? 8 - below : width;
        uint32_t mask = ((1u << count) - 1) << below;
        uint8_t *byte = to + (last >> 3);
        *byte = (uint8_t)((*byte & ~mask) | ((uint32_t)(value << below) & mask));
        value = count < 64 ? value >> count : 0;
        width -= count;
    }
}

void p4_bits_copy(uint8_t *to, uint64_t to_at, const uint8_t *from, uint64_t from_at, uint64_t bits) {
    if (!(to_at & 7) && !(from_at & 7)) {
        memcpy(to + (to_at >> 3), from + (from_at >> 3), bits >> 3);
        uint32_t rest = bits & 7;
        if (rest) p4_bits_put(to, to_at + bits - rest, rest, p4_bits_get(from, from_at + bits - rest, rest));
        return;
    }
    for (uint64_t done = 0; done < bits;) {
        uint32_t width = bits - done < 64 ? (uint32_t)(bits - done) : 64;
        p4_bits_put(to, to_at + done, width, p4_bits_get(from, from_at + done, width));
        done += width;
    }
}

void p4_bits_get_wide(uint64_t *value, const uint8_t *from, uint64_t at, uint32_t width) {
    for (uint32_t i = 0; width; i++) {
        uint32_t part = width < 64 ? width : 64;
        width -= part;
        value[i] = p4_bits_get(from, at + width, part);
    }
}

void p4_bits_put_wide(uint8_t *to, uint64_t at, uint32_t width, const uint64_t *value) {
    for (uint32_t i = 0; width; i++) {
        uint32_t part = width < 64 ? width : 64;
        width -= part;
        p4_bits_put(to, at + width, part, value[i]);
    }
}
