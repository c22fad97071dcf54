/* Values of more than 64 bits; see bits.h. */
#include "bits.h"

static void cut(uint64_t *a, uint32_t limbs, uint32_t width) {
    uint32_t top = width / 64;
    if (top < limbs) {
        a[top] &= p4_ones(width % 64);
        for (uint32_t i = top + 1; i < limbs; i++) a[i] = 0;
    }
}

static int bit(const uint64_t *a, uint32_t at) {
    return a[at / 64] >> (at % 64) & 1;
}

static int negative(const uint64_t *a, uint32_t width) {
    return width && bit(a, width - 1);
}

/* a + b + carry; returns the carry. */
static uint64_t add_to(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint64_t carry) {
    for (uint32_t i = 0; i < limbs; i++) {
        uint64_t sum = a[i] + b[i], over = sum < a[i];
        result[i] = sum + carry;
        carry = over | (result[i] < sum);
    }
    return carry;
}

/* a - b; returns the borrow. */
static uint64_t take_from(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs) {
    uint64_t borrow = 0;
    for (uint32_t i = 0; i < limbs; i++) {
        uint64_t difference = a[i] - b[i], under = a[i] < b[i];
        result[i] = difference - borrow;
        borrow = under | (difference < borrow);
    }
    return borrow;
}

void p4_wide_add(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    add_to(result, a, b, limbs, 0);
    cut(result, limbs, width);
}

void p4_wide_sub(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    take_from(result, a, b, limbs);
    cut(result, limbs, width);
}

#define BITWISE(name, operator)                                                                                        \
    void p4_wide_##name(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {      \
        (void)width;                                                                                                   \
        for (uint32_t i = 0; i < limbs; i++) result[i] = a[i] operator b[i];                                           \
    }
BITWISE(and, &)
BITWISE(or, |)
BITWISE(xor, ^)

static void invert(uint64_t *result, const uint64_t *a, uint32_t limbs, uint32_t width) {
    for (uint32_t i = 0; i < limbs; i++) result[i] = ~a[i];
    cut(result, limbs, width);
}

/* a * b -> high and low half. */
static uint64_t multiply(uint64_t a, uint64_t b, uint64_t *high) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (uint32_t)middle;
    *high = a1 * b1 + (middle >> 32) + (other >> 32);
    return other << 32 | (uint32_t)low;
}

/* The product is made limb by limb, from the least: so it may be neither operand. */
void p4_wide_mul(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    uint64_t product[limbs];
    memset(product, 0, sizeof product);
    for (uint32_t i = 0; i < limbs; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; i + j < limbs; j++) {
            uint64_t high, low = multiply(a[i], b[j], &high);
            low += carry;
            high += low < carry;
            product[i + j] += low;
            carry = high + (product[i + j] < low);
        }
    }
    memcpy(result, product, sizeof product);
    cut(result, limbs, width);
}

/* Schoolbook, bit by bit: quotient and remainder of b other than zero. */
static void divide(uint64_t *quotient, uint64_t *rest, const uint64_t *a, const uint64_t *b, uint32_t limbs) {
    memset(quotient, 0, limbs * sizeof *quotient);
    memset(rest, 0, limbs * sizeof *rest);
    for (uint32_t i = 64 * limbs; i-- > 0;) {
        uint64_t out = rest[limbs - 1] >> 63;
        for (uint32_t j = limbs - 1; j > 0; j--) rest[j] = rest[j] << 1 | rest[j - 1] >> 63;
        rest[0] = rest[0] << 1 | (uint64_t)bit(a, i);
        if (out || p4_wide_compare(rest, b, limbs) >= 0) {
            take_from(rest, rest, b, limbs);
            quotient[i / 64] |= 1ull << (i % 64);
        }
    }
}

static int is_zero(const uint64_t *a, uint32_t limbs) {
    for (uint32_t i = 0; i < limbs; i++)
        if (a[i]) return 0;
    return 1;
}

void p4_wide_div(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    (void)width;
    uint64_t quotient[limbs], rest[limbs];
    memset(quotient, 0, sizeof quotient);
    if (!is_zero(b, limbs)) divide(quotient, rest, a, b, limbs);
    memcpy(result, quotient, sizeof quotient);
}

void p4_wide_mod(uint64_t *result, const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    (void)width;
    uint64_t quotient[limbs], rest[limbs];
    memset(rest, 0, sizeof rest);
    if (!is_zero(b, limbs)) divide(quotient, rest, a, b, limbs);
    memcpy(result, rest, sizeof rest);
}

void p4_wide_shl(uint64_t *result, const uint64_t *a, uint64_t by, uint32_t limbs, uint32_t width) {
    if (by >= width) {
        memset(result, 0, limbs * sizeof *result);
        return;
    }
    uint32_t skip = (uint32_t)(by / 64), shift = by % 64;
    for (uint32_t i = limbs; i-- > 0;) {
        uint64_t low = i >= skip ? a[i - skip] << shift : 0;
        result[i] = low | (shift && i > skip ? a[i - skip - 1] >> (64 - shift) : 0);
    }
    cut(result, limbs, width);
}

void p4_wide_shr(uint64_t *result, const uint64_t *a, uint64_t by, uint32_t limbs, uint32_t width) {
    if (by >= width) {
        memset(result, 0, limbs * sizeof *result);
        return;
    }
    p4_wide_slice(result, limbs, a, limbs, width - 1, (uint32_t)by);
}

void p4_wide_sar(uint64_t *result, const uint64_t *a, uint64_t by, uint32_t limbs, uint32_t width) {
    if (!negative(a, width)) {
        p4_wide_shr(result, a, by, limbs, width);
        return;
    }
    invert(result, a, limbs, width); /* ~(~a >> by) brings ones in from above */
    p4_wide_shr(result, result, by, limbs, width);
    invert(result, result, limbs, width);
}

int p4_wide_compare(const uint64_t *a, const uint64_t *b, uint32_t limbs) {
    for (uint32_t i = limbs; i-- > 0;)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

int p4_wide_signed_compare(const uint64_t *a, const uint64_t *b, uint32_t limbs, uint32_t width) {
    int below = negative(a, width);
    if (below != negative(b, width)) return below ? -1 : 1;
    return p4_wide_compare(a, b, limbs);
}

void p4_wide_resize(uint64_t *result, uint32_t limbs, const uint64_t *a, uint32_t from_limbs) {
    for (uint32_t i = 0; i < limbs; i++) result[i] = i < from_limbs ? a[i] : 0;
}

void p4_wide_extend(uint64_t *result, uint32_t limbs, uint32_t to_width, const uint64_t *a, uint32_t from_limbs,
                    uint32_t width) {
    int below = negative(a, width);
    p4_wide_resize(result, limbs, a, from_limbs);
    if (below && to_width > width) {
        result[width / 64] |= ~p4_ones(width % 64);
        for (uint32_t i = width / 64 + 1; i < limbs; i++) result[i] = ~0ull;
    }
    cut(result, limbs, to_width);
}

void p4_wide_slice(uint64_t *result, uint32_t limbs, const uint64_t *a, uint32_t from_limbs, uint32_t high,
                   uint32_t low) {
    uint32_t skip = low / 64, shift = low % 64;
    for (uint32_t i = 0; i < limbs; i++) {
        uint64_t bits = i + skip < from_limbs ? a[i + skip] >> shift : 0;
        result[i] = bits | (shift && i + skip + 1 < from_limbs ? a[i + skip + 1] << (64 - shift) : 0);
    }
    cut(result, limbs, high - low + 1);
}
