/* Bits of packets and values of any width. Bit 0 of a packet is the most significant bit of its first byte. Wide values
   are arrays of 64-bit limbs, least significant first, zero beyond their width: signed ones too (two's complement). */
#pragma once

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define P4_BIG16(x) __builtin_bswap16(x)
#define P4_BIG32(x) __builtin_bswap32(x)
#define P4_BIG64(x) __builtin_bswap64(x)
#else
#define P4_BIG16(x) (x)
#define P4_BIG32(x) (x)
#define P4_BIG64(x) (x)
#endif

#ifdef __SIZEOF_INT128__
__extension__ typedef unsigned __int128 p4_u128;
#endif

static inline uint32_t p4_load16(const uint8_t *from) {
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return P4_BIG16(value);
}

static inline uint32_t p4_load32(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return P4_BIG32(value);
}

static inline uint64_t p4_load64(const uint8_t *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return P4_BIG64(value);
}

static inline void p4_store16(uint8_t *to, uint32_t value) {
    uint16_t big = P4_BIG16((uint16_t)value);
    memcpy(to, &big, sizeof big);
}

static inline void p4_store32(uint8_t *to, uint32_t value) {
    uint32_t big = P4_BIG32(value);
    memcpy(to, &big, sizeof big);
}

static inline void p4_store64(uint8_t *to, uint64_t value) {
    uint64_t big = P4_BIG64(value);
    memcpy(to, &big, sizeof big);
}

/* The low `width` bits set; width up to 64. */
static inline uint64_t p4_ones(uint32_t width) {
    return width >= 64 ? ~0ull : (1ull << width) - 1;
}

/* ---- bits of packets */

/* width: up to 64 */
uint64_t p4_bits_get(const uint8_t *from, uint64_t at, uint32_t width);
void p4_bits_put(uint8_t *to, uint64_t at, uint32_t width, uint64_t value);
/* Ranges don't overlap. */
void p4_bits_copy(uint8_t *to, uint64_t to_at, const uint8_t *from, uint64_t from_at, uint64_t bits);
void p4_bits_get_wide(uint64_t *value, const uint8_t *from, uint64_t at, uint32_t width);
void p4_bits_put_wide(uint8_t *to, uint64_t at, uint32_t width, const uint64_t *value);

/* ---- arithmetic up to 64 bits: values lie in the low `width` bits */

/* The sign of bit width - 1 taken through all 64 bits. */
static inline uint64_t p4_extend(uint64_t value, uint32_t width) {
    uint64_t sign = width ? 1ull << (width - 1) : 0;
    return (value ^ sign) - sign;
}

static inline uint64_t p4_shl(uint64_t value, uint64_t by, uint32_t width) {
    return by >= width ? 0 : (value << by) & p4_ones(width);
}

static inline uint64_t p4_shr(uint64_t value, uint64_t by, uint32_t width) {
    return by >= width ? 0 : value >> by;
}

static inline uint64_t p4_sar(uint64_t value, uint64_t by, uint32_t width) {
    uint64_t sign = width ? value >> (width - 1) & 1 : 0;
    uint64_t fill = sign ? p4_ones(width) : 0;
    return by >= width ? fill : ((value >> by) | (fill & ~(p4_ones(width) >> by))) & p4_ones(width);
}

static inline uint64_t p4_div(uint64_t a, uint64_t b) {
    return b ? a / b : 0;
}

static inline uint64_t p4_mod(uint64_t a, uint64_t b) {
    return b ? a % b : 0;
}

/* ---- arithmetic of any width: `limbs` of each operand and of the result, which may be an operand */

typedef void p4_wide_op(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width);
p4_wide_op p4_wide_add, p4_wide_sub, p4_wide_mul, p4_wide_div, p4_wide_mod, p4_wide_and, p4_wide_or, p4_wide_xor;
typedef void p4_wide_shift(uint64_t *result, const uint64_t *a, uint64_t by, uint32_t limbs, uint32_t width);
p4_wide_shift p4_wide_shl, p4_wide_shr, p4_wide_sar;
/* Less than, equal, greater than 0, as a is to b. */
int p4_wide_compare(const uint64_t *a, const uint64_t *b, uint32_t limbs);
int p4_wide_signed_compare(const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width);
/* Other numbers of limbs: cut, or zeros above. */
void p4_wide_resize(uint64_t *result, uint32_t limbs, const uint64_t *a, uint32_t from_limbs);
/* The low `to_width` bits of a, by its sign where that is more than `width`. */
void p4_wide_extend(uint64_t *result, uint32_t limbs, uint32_t to_width, const uint64_t *a, uint32_t from_limbs,
                    uint32_t width);
/* a[high:low]; the result has limbs for high - low + 1 bits. */
void p4_wide_slice(uint64_t *result, uint32_t limbs, const uint64_t *a, uint32_t from_limbs, uint32_t high, uint32_t low);
/* Values of N limbs as C values. */
#define P4_WIDE(N)                                                                                                     \
    struct p4_w##N {                                                                                                   \
        uint64_t w[N];                                                                                                 \
    };                                                                                                                 \
    static inline struct p4_w##N p4_w##N##_do(p4_wide_op *op, struct p4_w##N a, struct p4_w##N b, uint32_t width) {    \
        op(a.w, a.w, b.w, N, width);                                                                                   \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline struct p4_w##N p4_w##N##_shift(p4_wide_shift *op, struct p4_w##N a, uint64_t by, uint32_t width) {   \
        op(a.w, a.w, by, N, width);                                                                                    \
        return a;                                                                                                      \
    }                                                                                                                  \
    static inline struct p4_w##N p4_w##N##_of(const uint64_t *a, uint32_t limbs) {                                     \
        struct p4_w##N r;                                                                                              \
        p4_wide_resize(r.w, N, a, limbs);                                                                              \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline struct p4_w##N p4_w##N##_cast(const uint64_t *a, uint32_t limbs, uint32_t width, uint32_t to) {      \
        struct p4_w##N r;                                                                                              \
        p4_wide_extend(r.w, N, to, a, limbs, width);                                                                   \
        return r;                                                                                                      \
    }                                                                                                                  \
    static inline struct p4_w##N p4_w##N##_slice(const uint64_t *a, uint32_t limbs, uint32_t high, uint32_t low) {     \
        struct p4_w##N r;                                                                                              \
        p4_wide_slice(r.w, N, a, limbs, high, low);                                                                    \
        return r;                                                                                                      \
    }

#ifdef __SIZEOF_INT128__
P4_WIDE(2)

static inline struct p4_w2 p4_two(p4_u128 value) {
    return (struct p4_w2){{(uint64_t)value, (uint64_t)(value >> 64)}};
}

static inline p4_u128 p4_one(struct p4_w2 value) {
    return (p4_u128)value.w[1] << 64 | value.w[0];
}

/* 65 to 128 bits. */
static inline struct p4_w2 p4_get_two(const uint8_t *from, uint64_t at, uint32_t width) {
    struct p4_w2 value;
    p4_bits_get_wide(value.w, from, at, width);
    return value;
}
#endif

static inline uint64_t p4_slice64(const uint64_t *a, uint32_t limbs, uint32_t high, uint32_t low) {
    uint64_t r;
    p4_wide_slice(&r, 1, a, limbs, high, low);
    return r;
}
