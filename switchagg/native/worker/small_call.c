#include "switchagg/native/worker/small_call.h"

#include <string.h>

#include "switchagg/native/rule/wire.h"

uint32_t sa_small_rows(uint32_t room, uint32_t workers, uint64_t count) {
    uint32_t width = room / 2;
    if (workers > SA_SMALL_WORKERS || !count || count > (uint64_t)SA_SMALL_ROWS * width) return 0;
    uint32_t rows = (uint32_t)((count + width - 1) / width);
    return 3 * rows + SA_WORDS * workers <= room ? rows : 0;
}

uint64_t sa_small_bytes(uint32_t room, uint32_t rows) {
    return sizeof(struct sa_small) + sizeof(uint32_t) * room * rows;
}

/* A row's values in the caller's array, or in a copy of it. */
struct row {
    uint64_t offset; /* in bytes */
    uint32_t count;
};

static struct row row_of(const struct sa_call *call, uint32_t row) {
    uint32_t width = call->coding.width;
    uint64_t low = (uint64_t)row * width, left = call->layout.count - low;
    return (struct row){low * sizeof(float), left < width ? (uint32_t)left : width};
}

static uint32_t small_kind(struct sa_call *call, uint64_t position) {
    (void)call, (void)position;
    return sa_kind(SA_OP_SUM, SA_ROUTE_ALL, 0, 0);
}

static void small_read(struct sa_call *call, uint64_t position, uint8_t *payload) {
    const struct sa_small *small = call->small;
    int first = position < small->rows;
    uint32_t index = (uint32_t)position - (first ? 0 : small->rows);
    struct row row = row_of(call, index);
    const uint8_t *values = small->again ? (const uint8_t *)small->early_results : call->data;
    call->coding.codec->encode(&call->coding, values + row.offset, row.count, index,
                               first ? small->predicted[index] : small->agreed[index], payload);
}

static void small_store(struct sa_call *call, uint32_t index, const uint8_t *payload) {
    struct row row = row_of(call, index);
    call->coding.codec->decode(&call->coding, call->data + row.offset, row.count, call->small->agreed[index], payload);
}

static void small_write(struct sa_call *call, uint64_t position, const uint8_t *payload) {
    struct sa_small *small = call->small;
    uint32_t elements = call->coding.elements;
    if (call->undecided) { /* the caller has marked what is wrong */
        memcpy(small->early_results + position * elements, payload, sizeof(uint32_t) * elements);
        small->held |= 1u << position;
    } else if (!small->again) {
        small_store(call, (uint32_t)position, payload);
    } else if (position >= small->rows) {
        small_store(call, (uint32_t)position - small->rows, payload);
    }
}

static void small_pass(struct sa_call *call, uint64_t position) { (void)call, (void)position; }

static struct sa_tag_terms small_terms(struct sa_call *call, uint64_t position) {
    const struct sa_small *small = call->small;
    int first = position < small->rows;
    uint32_t index = (uint32_t)position - (first ? 0 : small->rows);
    int16_t code = first ? small->predicted[index] : small->agreed[index];
    return (struct sa_tag_terms){.code = code,
                                 .agreed = 1,
                                 .is_largest = small->local_codes[index] == code,
                                 .signed_words = call->coding.codec->signed_words,
                                 .ignored = small->again && first};
}

static const struct sa_call_form form = {small_kind, small_read, small_write, small_pass, small_terms};

void sa_small_init(struct sa_call *call, const struct sa_coding *coding, const struct sa_submission *submission,
                   const struct sa_verified_sums *verified, struct sa_small *small) {
    uint32_t rows = (uint32_t)((submission->count + coding->width - 1) / coding->width);
    *small = (struct sa_small){.rows = rows};
    *call = (struct sa_call){
        .form = &form,
        .coding = *coding,
        .layout = {.count = submission->count},
        .data = submission->data,
        .chunks = rows,
        .ready = rows,
        .undecided = 1,
        .verified = verified,
        .small = small,
    };
}

void sa_small_predict(struct sa_call *call, const struct sa_predictions *predictions, int32_t *codes) {
    const struct sa_prediction *last = &predictions->places[call->layout.count % SA_PLACES];
    struct sa_small *small = call->small;
    int known = last->count == call->layout.count;
    for (uint32_t i = 0; i < small->rows; i++) {
        struct row row = row_of(call, i);
        int32_t local_code = call->coding.codec->prepare(&call->coding, call->data + row.offset, row.count);
        int32_t code = known && last->codes[i] > local_code ? last->codes[i] : local_code; /* a lower one can't be agreed */
        small->local_codes[i] = (int16_t)local_code;
        small->predicted[i] = (int16_t)code;
        codes[i] = local_code;
        codes[small->rows + i] = code;
        codes[2 * small->rows + i] = -code;
    }
}

/* Zeros, NaN and infinities are the same under any prediction, and no news of what is usual. */
static int special(int32_t code) { return code <= SA_CODE_LEAST || code >= SA_CODE_GREATEST; }

int sa_small_decide(struct sa_call *call, struct sa_predictions *predictions, const int32_t *codes, int verified) {
    struct sa_small *small = call->small;
    struct sa_prediction *last = &predictions->places[call->layout.count % SA_PLACES];
    uint32_t rows = small->rows;
    int known = last->count == call->layout.count, hit = 1;
    last->count = call->layout.count;
    for (uint32_t i = 0; i < rows; i++) {
        int32_t code = codes[i];
        small->agreed[i] = sa_agreed(code);
        if ((verified || !special(code)) && (codes[rows + i] != code || codes[2 * rows + i] != -code)) hit = 0;
        if (!special(code))
            last->codes[i] = small->agreed[i];
        else if (!known)
            last->codes[i] = SA_CODE_LEAST;
    }
    call->undecided = 0;
    if (hit) {
        for (uint32_t i = 0; i < rows; i++)
            if ((small->held & ~small->wrong) >> i & 1u)
                small_store(call, i, (const uint8_t *)(small->early_results + (uint64_t)i * call->coding.elements));
    } else {
        memcpy(small->early_results, call->data, sizeof(float) * call->layout.count);
        small->again = 1;
        call->chunks = call->ready = 2 * rows;
    }
    return hit;
}

uint64_t sa_small_position(const struct sa_call *call, uint64_t row) {
    const struct sa_small *small = call->small;
    if (row >= small->rows || call->undecided) return SA_NO_POSITION;
    if (small->again) return small->rows + row;
    return small->wrong >> row & 1u ? SA_NO_POSITION : row;
}
