/* Exact sums (F19 to F21): most groups of float32 in vectors, as integers of up to 52 bits in doubles; all others value
   by value. */
#include "switchagg/native/codecs/exact.h"

#include <stdbool.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"

#define GROUP SA_EXACT_GROUP
#define SPECIAL 4096
#define COUNT_BITS 10u     /* of a special word, for each kind */
#define DOUBLE_BITS 52u    /* integers of so many bits lie in the significand of a double of 2^52 or more */
#define DIGITS_MOST 97u    /* of a float64 with 22 bits each, and one above for the sign */
#define BLOCK 16u          /* words of lanes that are written and read together; what is beyond the last is of no meaning */
#define PADDED (GROUP + 31 + BLOCK)

typedef uint32_t block __attribute__((vector_size(4 * BLOCK)));

struct lanes {
    uint32_t bits, width, per_word, words;
};

/* How a group travels (F20). */
struct cut {
    int32_t span, least;
    bool special;
    uint32_t size, bits, full, parts, words;
    struct lanes lanes[2];
};

static uint32_t headroom_of(uint32_t workers) { return workers > 1 ? 32u - (uint32_t)__builtin_clz(workers - 1) : 0; }

static void cut_span(struct cut *cut, uint32_t headroom) {
    uint32_t rest = 0, half = 16 - headroom;
    cut->bits = 32 - headroom, cut->full = cut->parts = cut->words = 0;
    if (cut->span) {
        cut->full = (uint32_t)(cut->span + 1) / cut->bits;
        rest = (uint32_t)(cut->span + 1) % cut->bits;
        cut->words = cut->full * cut->size;
    }
    uint32_t lower = half < rest && rest + headroom <= half + 10 ? half : 0, widths[2] = {lower, rest - lower};
    for (uint32_t part = 0; part < 2; part++) {
        if (!widths[part]) continue;
        struct lanes *lanes = &cut->lanes[cut->parts++];
        lanes->bits = widths[part], lanes->width = widths[part] + headroom, lanes->per_word = 32 / lanes->width;
        lanes->words = (cut->size + lanes->per_word - 1) / lanes->per_word;
        cut->words += lanes->words;
    }
}

/* Cuts of whole groups, by span, as far as they came. */
struct cuts {
    const struct sa_exact *exact;
    uint32_t headroom;
    int32_t least, greatest; /* of the values' type */
    struct cut known[DOUBLE_BITS];
};

static void cuts_begin(struct cuts *cuts, const struct sa_exact *exact) {
    bool narrow = exact->dtype == SA_FLOAT32;
    memset(cuts, 0, sizeof *cuts);
    cuts->exact = exact, cuts->headroom = headroom_of(exact->workers);
    cuts->least = narrow ? -149 : -1074, cuts->greatest = narrow ? 128 : 1024;
}

static int32_t clamped(int64_t value, int32_t least, int32_t most) {
    return (int32_t)(value < least ? least : value > most ? most : value);
}

static struct cut cut_of(struct cuts *cuts, uint32_t size, int32_t upper, int32_t lower) {
    bool special = upper >= SPECIAL;
    int32_t highest = special || upper > cuts->greatest ? cuts->greatest : upper, span = 0;
    int32_t least = clamped(-(int64_t)lower, cuts->least, cuts->greatest - 1);
    if (highest > cuts->least && lower != SA_CODE_LEAST) span = clamped((int64_t)highest - least, 1, cuts->greatest - cuts->least);
    struct cut fresh, *cut = &fresh;
    if (size == GROUP && span < (int32_t)DOUBLE_BITS) cut = &cuts->known[span];
    if (cut == &fresh || !cut->size) {
        cut->span = span, cut->size = size;
        cut_span(cut, cuts->headroom);
    }
    fresh = *cut;
    fresh.least = least, fresh.special = special;
    if (special) fresh.words += size;
    return fresh;
}

/* Whether a group is coded in vectors: blocks of lanes must not reach beyond the words, of which so many are left. */
static bool is_fast(const struct cuts *cuts, const struct cut *cut, uint64_t left) {
    return cuts->exact->dtype == SA_FLOAT32 && cut->size == GROUP && !cut->special &&
           (uint32_t)cut->span + 1 + cuts->headroom <= DOUBLE_BITS && left >= cut->words + BLOCK;
}

SA_INLINE uint64_t bits_of(double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* ---- values one by one */

enum kind { FINITE, INFINITE, NEGATIVE_INFINITE, NO_NUMBER };

/* +-magnitude * 2^exponent. */
struct number {
    uint64_t magnitude;
    int32_t exponent;
    bool negative;
    enum kind kind;
};

static struct number number_at(uint32_t dtype, const uint8_t *values, uint64_t index) {
    uint32_t fraction = dtype == SA_FLOAT32 ? 23 : 52, fields = dtype == SA_FLOAT32 ? 255 : 2047;
    uint64_t bits = 0;
    if (dtype == SA_FLOAT32) {
        uint32_t narrow;
        memcpy(&narrow, values + 4 * index, 4);
        bits = narrow;
    } else {
        memcpy(&bits, values + 8 * index, 8);
    }
    uint32_t field = (uint32_t)(bits >> fraction) & fields;
    uint64_t magnitude = bits & ((UINT64_C(1) << fraction) - 1);
    bool negative = bits >> (dtype == SA_FLOAT32 ? 31 : 63);
    if (field == fields) return (struct number){0, 0, false, magnitude ? NO_NUMBER : negative ? NEGATIVE_INFINITE : INFINITE};
    if (field) magnitude |= UINT64_C(1) << fraction;
    return (struct number){magnitude, (int32_t)(field ? field : 1) - 1 + (dtype == SA_FLOAT32 ? -149 : -1074), negative, FINITE};
}

static void codes_of(uint32_t dtype, const uint8_t *values, uint32_t size, int32_t *upper, int32_t *lower) {
    bool special = false;
    *upper = *lower = SA_CODE_LEAST;
    for (uint32_t i = 0; i < size; i++) {
        struct number number = number_at(dtype, values, i);
        special |= number.kind != FINITE;
        if (!number.magnitude) continue;
        int32_t highest = number.exponent + 64 - __builtin_clzll(number.magnitude);
        int32_t lowest = number.exponent + __builtin_ctzll(number.magnitude);
        if (highest > *upper) *upper = highest;
        if (-lowest > *lower) *lower = -lowest;
    }
    if (special) *upper = SPECIAL;
}

/* What 2^span has in a digit. */
static int64_t bias_of(const struct cut *cut, uint32_t digit) {
    return digit == (uint32_t)cut->span / cut->bits ? INT64_C(1) << (uint32_t)cut->span % cut->bits : 0;
}

static void encode_slowly(const struct cut *cut, uint32_t dtype, const uint8_t *values, uint32_t *words) {
    int64_t mask = (INT64_C(1) << cut->bits) - 1;
    uint32_t total = cut->full + (cut->parts > 0);
    memset(words, 0, 4ull * cut->words);
    for (uint32_t i = 0; i < cut->size; i++) {
        struct number number = number_at(dtype, values, i);
        int32_t shift = number.exponent - cut->least;
        int64_t carry = 0;
        uint32_t *out = words;
        for (uint32_t digit = 0; cut->span && digit < total; digit++) {
            int32_t at = (int32_t)(digit * cut->bits) - shift;
            uint64_t window = number.magnitude >> clamped(at, 0, 63) << clamped(-(int64_t)at, 0, 63);
            int64_t part = (int64_t)(window & (uint64_t)mask);
            carry += (number.negative ? -part : part) + bias_of(cut, digit);
            uint32_t rest = (uint32_t)(carry & mask);
            carry >>= cut->bits;
            if (digit < cut->full) {
                out[i] = rest;
                out += cut->size;
                continue;
            }
            for (const struct lanes *lanes = cut->lanes; lanes < cut->lanes + cut->parts; out += lanes++->words) {
                out[i % lanes->words] |= (rest & ((1u << lanes->bits) - 1)) << (i / lanes->words * lanes->width);
                rest >>= lanes->bits;
            }
        }
        if (cut->special && number.kind) out[i] = 1u << COUNT_BITS * (number.kind - 1u);
    }
}

/* An integer that isn't negative: its highest bits, from the first that is set, times 2^at, and whether any below is. */
struct head {
    uint64_t bits;
    int32_t at;
    bool tail;
};

static struct head head_of(const int64_t *digits, uint32_t count, uint32_t digit_bits) {
    while (count > 1 && !digits[count - 1]) count--;
    struct head head = {(uint64_t)digits[count - 1], 0, false};
    int32_t room = head.bits ? __builtin_clzll(head.bits) : 0;
    head.bits <<= room;
    head.at = (int32_t)(digit_bits * (count - 1)) - room;
    for (uint32_t number = count - 1; number-- > 0;) {
        uint64_t digit = (uint64_t)digits[number];
        room -= (int32_t)digit_bits;
        if (room >= 0) {
            head.bits |= digit << room;
        } else if (room > -64) {
            head.bits |= digit >> -room;
            head.tail |= (digit & ((UINT64_C(1) << -room) - 1)) != 0;
        } else {
            head.tail |= digit != 0;
        }
    }
    return head;
}

/* To the nearest, ties to even (F21). */
static double rounded(struct head head, int32_t least, const struct sa_exact *exact) {
    if (exact->divisor > 1) {
        head.tail |= head.bits % exact->divisor != 0;
        head.bits /= exact->divisor;
    }
    if (!head.bits) return 0;
    int32_t lowest = least + head.at, unit = lowest + 64 - __builtin_clzll(head.bits) - exact->precision;
    if (unit < exact->least) unit = exact->least;
    int32_t drop = unit - lowest; /* at least 1: a head has 54 bits */
    uint64_t quotient = drop < 64 ? head.bits >> drop : 0, half = drop <= 64 ? head.bits >> (drop - 1) & 1 : 0;
    bool below = head.tail || drop > 64 || (head.bits & ((UINT64_C(1) << (drop - 1)) - 1));
    quotient += half & (below | (quotient & 1));
    if (!quotient) return 0;
    if (unit + 64 - __builtin_clzll(quotient) > exact->greatest) return __builtin_inf();
    /* two products, each exact: a unit below 2^-1022 is no normal number */
    return (double)quotient * sa_power(unit / 2) * sa_power(unit - unit / 2);
}

static void put(uint32_t dtype, uint8_t *values, uint32_t index, double value) {
    float narrow = (float)value;
    if (dtype == SA_FLOAT32)
        memcpy(values + 4ull * index, &narrow, 4);
    else
        memcpy(values + 8ull * index, &value, 8);
}

/* The sum of a group's value without its bias, as digits; returns whether it is negative. */
static bool integer_of(const struct cut *cut, uint32_t workers, const uint32_t *words, uint32_t i, int64_t *digits,
                       uint32_t total) {
    int64_t mask = (INT64_C(1) << cut->bits) - 1, carry = 0;
    for (uint32_t digit = 0; digit < total; digit++) {
        uint64_t sum = 0;
        uint32_t shift = 0;
        if (digit < cut->full) {
            sum = words[i];
            words += cut->size;
        } else {
            for (const struct lanes *lanes = cut->lanes; lanes < cut->lanes + cut->parts; words += lanes++->words) {
                uint64_t lane = words[i % lanes->words] >> (i / lanes->words * lanes->width);
                sum += (lane & ((UINT64_C(1) << lanes->width) - 1)) << shift;
                shift += lanes->bits;
            }
        }
        carry += (int64_t)sum - workers * bias_of(cut, digit);
        digits[digit] = carry & mask;
        carry >>= cut->bits;
    }
    bool negative = carry < 0;
    digits[total] = carry;
    carry = 0;
    for (uint32_t digit = 0; negative && digit <= total; digit++) {
        carry -= digits[digit];
        digits[digit] = digit < total ? carry & mask : carry;
        carry >>= cut->bits;
    }
    return negative;
}

static void decode_slowly(const struct cut *cut, const struct sa_exact *exact, const uint32_t *words, uint8_t *values) {
    int64_t digits[DIGITS_MOST + 1];
    uint32_t total = cut->full + (cut->parts > 0), most = (1u << COUNT_BITS) - 1;
    for (uint32_t i = 0; i < cut->size; i++) {
        double value = 0;
        if (cut->span) {
            bool negative = integer_of(cut, exact->workers, words, i, digits, total);
            value = rounded(head_of(digits, total + 1, cut->bits), cut->least, exact);
            if (negative) value = -value;
        }
        if (cut->special) {
            uint32_t counts = words[cut->words - cut->size + i];
            bool positive = counts & most, negative = counts >> COUNT_BITS & most;
            if (positive || negative) value = positive ? __builtin_inf() : -__builtin_inf();
            if ((positive && negative) || counts >> 2 * COUNT_BITS & most) value = __builtin_nan("");
        }
        put(exact->dtype, values, i, value);
    }
}

/* ---- groups of float32 in vectors */

SA_VECTORISED static void exact_codes32(const sa_uint32_at *bits, uint32_t *greatest, int32_t *least) {
    int32_t most = 0, lowest = INT32_MAX, bases[GROUP], places[GROUP];
    float lowest_bits[GROUP];
    for (uint32_t i = 0; i < GROUP; i++) {
        int32_t magnitude = (int32_t)(bits[i] & 0x7fffffffu), field = magnitude >> 23, is_normal = field > 0 ? 1 : 0;
        int32_t mantissa = (magnitude & 0x7fffff) | is_normal << 23;
        bases[i] = mantissa ? field + 1 - is_normal : INT32_MAX / 2;
        lowest_bits[i] = (float)(mantissa & -mantissa);
        most = magnitude > most ? magnitude : most;
    }
    memcpy(places, lowest_bits, sizeof places); /* loops that read floats as integers are not vectorised */
    for (uint32_t i = 0; i < GROUP; i++) {
        int32_t exponent = (places[i] >> 23) + bases[i];
        lowest = exponent < lowest ? exponent : lowest;
    }
    *greatest = (uint32_t)most, *least = lowest;
}

static void codes_fast(const uint8_t *values, int32_t *upper, int32_t *lower) {
    uint32_t greatest;
    int32_t least;
    exact_codes32((const sa_uint32_at *)values, &greatest, &least);
    int32_t field = (int32_t)(greatest >> 23);
    if (field == 255) {
        codes_of(SA_FLOAT32, values, GROUP, upper, lower);
    } else if (!greatest) {
        *upper = *lower = SA_CODE_LEAST;
    } else {
        *upper = field ? field - 126 : 32 - __builtin_clz(greatest) - 149;
        *lower = 127 + 150 - least;
    }
}

SA_VECTORISED static void encode_fast(const struct cut *cut, const sa_float32_at *restrict values, double up, double bias,
                                      uint32_t *restrict words) {
    uint64_t integers[GROUP];
    uint32_t rest[PADDED], at = 0, mask = (uint32_t)((UINT64_C(1) << cut->bits) - 1);
    for (uint32_t i = 0; i < GROUP; i++)
        integers[i] = bits_of((double)values[i] * up + bias) & ((UINT64_C(1) << DOUBLE_BITS) - 1);
    for (uint32_t digit = 0; digit < cut->full; digit++, words += GROUP, at += cut->bits)
        for (uint32_t i = 0; i < GROUP; i++) words[i] = (uint32_t)(integers[i] >> at) & mask;
    memset(rest + GROUP, 0, sizeof rest - GROUP * sizeof *rest);
    for (uint32_t part = 0; part < cut->parts; part++) {
        struct lanes lanes = cut->lanes[part];
        mask = (1u << lanes.bits) - 1;
        for (uint32_t i = 0; i < GROUP; i++) rest[i] = (uint32_t)(integers[i] >> at) & mask;
        at += lanes.bits;
        for (uint32_t word = 0; word < lanes.words; word += BLOCK) {
            block joint = {0};
            for (uint32_t lane = 0; lane < lanes.per_word; lane++) {
                block digits;
                memcpy(&digits, rest + lane * lanes.words + word, sizeof digits);
                joint |= digits << lane * lanes.width;
            }
            memcpy(words + word, &joint, sizeof joint);
        }
        words += lanes.words;
    }
}

/* Integers without bias, which a double holds. */
SA_VECTORISED static void integers_fast(const struct cut *cut, double bias, const uint32_t *restrict words,
                                        double *restrict integers) {
    uint64_t sums[GROUP] = {0};
    uint32_t rest[PADDED], at = 0;
    for (uint32_t digit = 0; digit < cut->full; digit++, words += GROUP, at += cut->bits)
        for (uint32_t i = 0; i < GROUP; i++) sums[i] += (uint64_t)words[i] << at;
    for (uint32_t part = 0; part < cut->parts; part++) {
        struct lanes lanes = cut->lanes[part];
        uint32_t mask = (uint32_t)((UINT64_C(1) << lanes.width) - 1);
        for (uint32_t lane = 0; lane < lanes.per_word; lane++) /* what a block has too much, the next lane replaces */
            for (uint32_t word = 0; word < lanes.words; word += BLOCK) {
                block joint;
                memcpy(&joint, words + word, sizeof joint);
                joint = joint >> lane * lanes.width & mask;
                memcpy(rest + lane * lanes.words + word, &joint, sizeof joint);
            }
        for (uint32_t i = 0; i < GROUP; i++) sums[i] += (uint64_t)rest[i] << at;
        words += lanes.words, at += lanes.bits;
    }
    for (uint32_t i = 0; i < GROUP; i++) integers[i] = sa_double(sums[i] | UINT64_C(0x433) << DOUBLE_BITS) - bias;
}

SA_VECTORISED static void scale_fast(const double *restrict integers, double down, sa_float32_at *restrict values) {
    for (uint32_t i = 0; i < GROUP; i++) values[i] = (float)(integers[i] * down);
}

/* Quotients are rounded here and once more to the target type. That is as if they were rounded once: a quotient below
   2^(51 - L) that isn't in the middle between two results is off by 1 / divisor, at least 2^-L, of 1 or of that middle's
   last bit, whichever is less, and a double shows that. */
SA_VECTORISED static void divide_fast(double *integers, double divisor) {
    for (uint32_t i = 0; i < GROUP; i++) integers[i] /= divisor;
}

/* To multiples of a unit, by a sum whose last bit is one unit. */
SA_VECTORISED static void round_fast(const double *restrict integers, double down, const struct sa_exact *exact,
                                     sa_float32_at *restrict values) {
    int64_t precision = exact->precision, least = exact->least;
    double limit = sa_power(exact->greatest);
    for (uint32_t i = 0; i < GROUP; i++) {
        uint64_t bits = bits_of(integers[i] * down), sign = bits & UINT64_C(1) << 63;
        int64_t unit = (int64_t)((bits ^ sign) >> 52) - 1022 - precision;
        unit = unit < least ? least : unit;
        double large = sa_double((uint64_t)(unit + 52 + 1023) << 52 | UINT64_C(1) << 51);
        double value = (sa_double(bits ^ sign) + large) - large;
        value = value >= limit ? __builtin_inf() : value;
        values[i] = (float)sa_double(bits_of(value) | sign);
    }
}

static void decode_fast(const struct cut *cut, const struct sa_exact *exact, const uint32_t *words, uint8_t *values) {
    double integers[GROUP], down = sa_power(cut->least), bias = 0x1p52 + exact->workers * sa_power(cut->span);
    integers_fast(cut, bias, words, integers);
    if (exact->divisor & (exact->divisor - 1))
        divide_fast(integers, exact->divisor);
    else
        down /= exact->divisor;
    if (exact->precision == 24)
        scale_fast(integers, down, (sa_float32_at *)values);
    else
        round_fast(integers, down, exact, (sa_float32_at *)values);
}

/* ---- arrays */

/* Fetch a group that is SA_BYTES_AHEAD, of the array or past its end: the processor's own prefetch doesn't span the work
   between two groups. */
SA_INLINE void fetch_ahead(const void *place) {
    for (uintptr_t at = SA_BYTES_AHEAD; at < SA_BYTES_AHEAD + 4 * GROUP; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)place + at));
}

static uint32_t size_at(uint64_t first, uint64_t count) { return count - first < GROUP ? (uint32_t)(count - first) : GROUP; }

SA_EXPORT void sa_exact_codes(const struct sa_exact *exact, const uint8_t *values, uint64_t count, int32_t *upper,
                              int32_t *lower) {
    uint32_t bytes = sa_value_bytes((enum sa_dtype)exact->dtype);
    for (uint64_t first = 0; first < count; first += GROUP, values += GROUP * bytes, upper++, lower++) {
        fetch_ahead(values);
        if (exact->dtype == SA_FLOAT32 && size_at(first, count) == GROUP)
            codes_fast(values, upper, lower);
        else
            codes_of(exact->dtype, values, size_at(first, count), upper, lower);
    }
}

SA_EXPORT uint64_t sa_exact_words(const struct sa_exact *exact, uint64_t count, const int32_t *upper,
                                  const int32_t *lower) {
    struct cuts cuts;
    uint64_t total = 0;
    cuts_begin(&cuts, exact);
    for (uint64_t first = 0; first < count; first += GROUP)
        total += cut_of(&cuts, size_at(first, count), *upper++, *lower++).words;
    return total;
}

SA_EXPORT void sa_exact_encode(const struct sa_exact *exact, const uint8_t *values, uint64_t count,
                               const int32_t *upper, const int32_t *lower, uint32_t *words, uint64_t total) {
    struct cuts cuts;
    uint32_t bytes = sa_value_bytes((enum sa_dtype)exact->dtype);
    cuts_begin(&cuts, exact);
    for (uint64_t first = 0; first < count; first += GROUP, values += GROUP * bytes) {
        struct cut cut = cut_of(&cuts, size_at(first, count), *upper++, *lower++);
        fetch_ahead(values);
        fetch_ahead(words);
        if (!cut.words) continue;
        if (is_fast(&cuts, &cut, total))
            encode_fast(&cut, (const sa_float32_at *)values, sa_power(-cut.least), 0x1p52 + sa_power(cut.span), words);
        else
            encode_slowly(&cut, exact->dtype, values, words);
        words += cut.words, total -= cut.words;
    }
}

SA_EXPORT void sa_exact_decode(const struct sa_exact *exact, const uint32_t *words, uint64_t total,
                               const int32_t *upper, const int32_t *lower, uint8_t *values, uint64_t count) {
    struct cuts cuts;
    uint32_t bytes = sa_value_bytes((enum sa_dtype)exact->dtype);
    cuts_begin(&cuts, exact);
    for (uint64_t first = 0; first < count; first += GROUP, values += GROUP * bytes) {
        struct cut cut = cut_of(&cuts, size_at(first, count), *upper++, *lower++);
        fetch_ahead(values);
        fetch_ahead(words);
        if (!cut.words)
            memset(values, 0, (uint64_t)cut.size * bytes);
        else if (is_fast(&cuts, &cut, total))
            decode_fast(&cut, exact, words, values);
        else
            decode_slowly(&cut, exact, words, values);
        words += cut.words, total -= cut.words;
    }
}
