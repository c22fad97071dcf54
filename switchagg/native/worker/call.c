#include "switchagg/native/worker/call.h"

#include <string.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"
#include "switchagg/native/rule/wire.h"
#include "switchagg/native/worker/small_call.h"

/* How many chunks may be sent once the codes of the first `known` groups are agreed (W4). */
static uint64_t sa_ready_after(const struct sa_call *call, uint64_t known) {
    if (known == call->groups) return call->chunks;
    return 1 + known * (call->elements + 1ull) + (known + 1 < call->groups);
}

/* The contents of a chunk: values if `scale` is 0, else the codes of a group. */
struct sa_content {
    uint64_t index;
    int scale;
};

static struct sa_content sa_content(struct sa_call *call, uint64_t position) {
    if (!call->groups) return (struct sa_content){position, 0};
    if (position == 0) return (struct sa_content){0, 1};
    uint64_t block = call->elements + 1ull; /* a group's data and, before it, the next group's scale chunk */
    uint64_t group = call->near, rest = position - 1 - group * block;
    if (rest >= block) { /* or wrapped: it is of an earlier one */
        group = call->near = sa_quotient(position - 1, block);
        rest = position - 1 - group * block;
    }
    if (group + 1 < call->groups) {
        if (rest == 0) return (struct sa_content){group + 1, 1};
        rest--;
    }
    return (struct sa_content){group * call->elements + rest, 0};
}

static uint8_t *sa_values(const struct sa_call *call, const struct sa_span *span) {
    return call->data + span->low * sa_value_bytes(call->coding.dtype);
}

static void sa_put_code(uint8_t *at, int32_t code) {
    uint32_t value = SA_BE32((uint32_t)code);
    memcpy(at, &value, sizeof value);
}

/* Store this worker's codes of the data chunks before `end` (F1). */
static void sa_prepare_until(struct sa_call *call, uint64_t end) {
    const struct sa_coding *coding = &call->coding;
    if (end > call->layout.chunks) end = call->layout.chunks;
    for (uint64_t chunk = call->prepared; chunk < end; chunk++) {
        struct sa_span span = sa_layout_span(&call->layout, chunk);
        call->local_codes[chunk] = (int16_t)coding->codec->prepare(coding, sa_values(call, &span), span.count);
    }
    if (end > call->prepared) call->prepared = end;
}

/* This worker's codes of a group; the least where there is no data chunk. */
static void sa_own_codes(struct sa_call *call, uint64_t group, uint8_t *payload) {
    uint32_t elements = call->elements;
    uint64_t chunk = group * elements;
    sa_prepare_until(call, chunk + elements);
    for (uint32_t i = 0; i < elements; i++, chunk++)
        sa_put_code(payload + 4ull * i, chunk < call->layout.chunks ? call->local_codes[chunk] : SA_CODE_LEAST);
}

/* A group's codes are agreed. */
static void sa_advance(struct sa_call *call, uint64_t group) {
    /* Results of at most two scale chunks can be outstanding, the next two groups': `ready` allows no more. */
    if (group != call->known) {
        call->ahead = 1;
        return;
    }
    call->known += 1 + call->ahead;
    call->ahead = 0;
    call->ready = sa_ready_after(call, call->known);
}

static void sa_agree(struct sa_call *call, uint64_t group, const uint8_t *payload) {
    uint64_t first = group * call->elements, rest = call->layout.chunks - first;
    uint32_t count = rest < call->elements ? (uint32_t)rest : call->elements;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, payload + 4ull * i, sizeof value);
        call->codes[first + i] = sa_agreed((int32_t)SA_BE32(value));
    }
    sa_advance(call, group);
}

static int16_t sa_code(const struct sa_call *call, uint64_t chunk) { return call->groups ? call->codes[chunk] : 0; }

/* lost: what the codes of these values stand for, until then; 0 where the difference is no number. */
SA_VECTORISED static void sa_subtract(const sa_float32_at *restrict values, uint32_t count, sa_float32_at *restrict lost) {
    for (uint32_t i = 0; i < count; i++) {
        float rest = values[i] - lost[i];
        lost[i] = rest - rest == 0 ? rest : 0;
    }
}

static void sa_encode(const struct sa_call *call, uint64_t chunk, const struct sa_span *span, uint8_t *payload) {
    int16_t code = sa_code(call, chunk);
    const uint8_t *values = sa_values(call, span);
    call->coding.codec->encode(&call->coding, values, span->count, chunk, code, payload);
    if (!call->residual) return;
    struct sa_coding local_coding = call->coding;
    local_coding.ranks = 1;
    uint8_t *lost = (uint8_t *)(call->residual + span->low);
    local_coding.codec->decode(&local_coding, lost, span->count, code, payload);
    sa_subtract((const sa_float32_at *)values, span->count, (sa_float32_at *)lost);
}

/* Add this rank's own values to the sum of the others', as a switch adds. */
SA_VECTORISED static void sa_add_local(const sa_uint32_at *restrict sums, uint32_t count, uint32_t *restrict local) {
    for (uint32_t i = 0; i < count; i++) local[i] = SA_BE32(SA_BE32(local[i]) + SA_BE32(sums[i]));
}

SA_VECTORISED static void sa_max_local(const sa_uint32_at *restrict sums, uint32_t count, uint32_t *restrict local) {
    for (uint32_t i = 0; i < count; i++) {
        int32_t local_value = (int32_t)SA_BE32(local[i]), sum_value = (int32_t)SA_BE32(sums[i]);
        local[i] = SA_BE32((uint32_t)(local_value > sum_value ? local_value : sum_value));
    }
}

/* Whether this rank gets the result of a data chunk. A switch without routes gives it every one. */
static int sa_is_mine(const struct sa_call *call, uint32_t owner) {
    return call->route == SA_ROUTE_ALL || (owner == call->rank) == (call->route == SA_ROUTE_TO_OWNER);
}

static uint32_t sa_chunked_kind(struct sa_call *call, uint64_t position) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) return sa_kind(SA_OP_MAX, SA_ROUTE_ALL, 0, 0);
    if (!call->routed) return sa_kind(call->op, SA_ROUTE_ALL, 0, 0);
    return sa_kind(call->op, call->route, sa_layout_span(&call->layout, content.index).owner, 0);
}

static void sa_chunked_read(struct sa_call *call, uint64_t position, uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) {
        sa_own_codes(call, content.index, payload);
        return;
    }
    struct sa_span span = sa_layout_span(&call->layout, content.index);
    /* A row of the group after the next, with each one sent: read once for all, they would come from memory at its pace. */
    if (call->groups) sa_prepare_until(call, content.index + 2 * (uint64_t)call->elements + 1);
    if (call->route == SA_ROUTE_FROM_OWNER && span.owner != call->rank) /* another's, for a switch without routes */
        memset(payload, 0, 4ull * call->coding.elements);
    else
        sa_encode(call, content.index, &span, payload);
}

static void sa_chunked_write(struct sa_call *call, uint64_t position, const uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) {
        sa_agree(call, content.index, payload);
        return;
    }
    struct sa_span span = sa_layout_span(&call->layout, content.index);
    if (!sa_is_mine(call, span.owner)) return;
    if (call->routed && call->route == SA_ROUTE_TO_OWNER) {
        sa_encode(call, content.index, &span, (uint8_t *)call->scratch);
        (call->op == SA_OP_MAX ? sa_max_local : sa_add_local)((const sa_uint32_at *)payload, call->coding.elements,
                                                          call->scratch);
        payload = (const uint8_t *)call->scratch;
    }
    call->coding.codec->decode(&call->coding, sa_values(call, &span), span.count, sa_code(call, content.index), payload);
}

static void sa_chunked_pass(struct sa_call *call, uint64_t position) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) sa_advance(call, content.index);
}

static struct sa_tag_terms sa_chunked_terms(struct sa_call *call, uint64_t position) {
    struct sa_tag_terms terms = {.agreed = call->groups > 0, .presence = call->presence,
                                 .signed_words = call->coding.codec->signed_words && sa_value_bytes(call->coding.dtype) == 4};
    if (!terms.agreed) return terms;
    uint64_t chunk = sa_content(call, position).index;
    sa_prepare_until(call, chunk + 1); /* a partial sum may come before this rank has any values */
    terms.code = call->codes[chunk];
    terms.is_largest = call->local_codes[chunk] == terms.code;
    terms.gives_nothing = call->presence && call->local_codes[chunk] > terms.code;
    return terms;
}

static const struct sa_call_form chunked = {sa_chunked_kind, sa_chunked_read, sa_chunked_write, sa_chunked_pass,
                                            sa_chunked_terms};

/* ---- partial sums (Q6) */

/* Of this rank's values none is in the sum: all go to its residual, as numbers. */
static void sa_give_back(const struct sa_call *call, const struct sa_span *span) {
    const sa_float32_at *values = (const sa_float32_at *)sa_values(call, span);
    for (uint32_t i = 0; call->residual && i < span->count; i++)
        call->residual[span->low + i] = values[i] - values[i] == 0 ? values[i] : 0;
}

static void sa_partial_read(struct sa_call *call, uint64_t position, uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    uint32_t room = call->coding.elements, present = SA_BE32(1u << call->rank % 32);
    if (content.scale) {
        sa_own_codes(call, content.index, payload);
        return;
    }
    struct sa_span span = sa_layout_span(&call->layout, content.index);
    if (call->groups) sa_prepare_until(call, content.index + 2 * (uint64_t)call->elements + 1);
    if (call->groups && call->local_codes[content.index] > call->codes[content.index]) { /* not covered */
        memset(payload, 0, 4ull * call->elements);
        sa_give_back(call, &span);
        return;
    }
    sa_encode(call, content.index, &span, payload);
    memset(payload + 4ull * room, 0, 4ull * call->presence);
    memcpy(payload + 4ull * (room + call->rank / 32), &present, sizeof present);
}

/* Divide by how many ranks there are in a sum. */
static void sa_divide(const struct sa_call *call, const struct sa_span *span, uint32_t ranks) {
    sa_float32_at *single = (sa_float32_at *)sa_values(call, span);
    sa_float64_at *twice = (sa_float64_at *)single;
    for (uint32_t i = 0; i < span->count; i++)
        if (call->coding.dtype == SA_FLOAT32)
            single[i] /= (float)ranks;
        else
            twice[i] /= ranks;
}

static void sa_partial_write(struct sa_call *call, uint64_t position, const uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    uint32_t ranks = 0, present;
    if (content.scale) {
        sa_agree(call, content.index, payload);
        return;
    }
    struct sa_span span = sa_layout_span(&call->layout, content.index);
    for (uint32_t i = 0; i < call->presence; i++) {
        memcpy(&present, payload + 4ull * (call->coding.elements + i), sizeof present);
        ranks += (uint32_t)__builtin_popcount(present);
    }
    memcpy(&present, payload + 4ull * (call->coding.elements + call->rank / 32), sizeof present);
    if (!(SA_BE32(present) >> call->rank % 32 & 1u)) sa_give_back(call, &span);
    call->chunks_of[ranks]++;
    struct sa_coding coding = call->coding;
    coding.ranks = ranks;
    coding.codec->decode(&coding, sa_values(call, &span), span.count, sa_code(call, content.index), payload);
    if (call->mean && ranks) sa_divide(call, &span, ranks);
}

static const struct sa_call_form partial_sum = {sa_chunked_kind, sa_partial_read, sa_partial_write, sa_chunked_pass,
                                                sa_chunked_terms};

static struct sa_layout sa_layout_of(const struct sa_coding *coding, const struct sa_submission *submission) {
    struct sa_layout layout;
    sa_layout_init(&layout, submission->count, submission->unit, submission->owner, coding->workers, submission->run);
    layout.first = submission->first_row, layout.rows = submission->row_count;
    sa_layout_begin(&layout, coding->width);
    if (submission->route != SA_ROUTE_ALL && coding->workers == 1) layout.chunks = 0; /* it has what is its own */
    return layout;
}

uint64_t sa_call_codes(const struct sa_coding *coding, const struct sa_submission *submission, uint32_t elements) {
    uint64_t of_each = coding->codec->rounds * (coding->elements < elements ? 2u : 1u);
    return of_each ? of_each * sa_layout_of(coding, submission).chunks : 0;
}

void sa_call_init(struct sa_call *call, const struct sa_coding *coding, const struct sa_submission *submission,
                  const struct sa_caller *caller, int16_t *codes) {
    struct sa_layout layout = sa_layout_of(coding, submission);
    int beside = coding->elements < caller->elements;
    uint64_t groups = coding->codec->rounds ? (layout.chunks + caller->elements - 1) / caller->elements : 0;
    *call = (struct sa_call){
        .form = caller->presence ? &partial_sum : &chunked,
        .coding = *coding,
        .layout = layout,
        .data = submission->data,
        .residual = submission->residual,
        .groups = groups,
        .chunks = layout.chunks + groups,
        .codes = codes,
        .local_codes = beside && codes ? codes + layout.chunks : codes,
        .op = submission->op,
        .rank = caller->rank,
        .route = submission->route,
        .routed = submission->routed,
        .mean = submission->mean,
        .elements = caller->elements,
        .presence = caller->presence,
        .scratch = caller->scratch,
        .chunks_of = caller->chunks_of,
        .verified = caller->verified,
    };
    call->ready = sa_ready_after(call, 0);
}

/* ---- rows */

uint64_t sa_call_position(const struct sa_call *call, uint64_t row) {
    if (call->small) return sa_small_position(call, row);
    if (row >= call->layout.chunks || !sa_is_mine(call, sa_layout_span(&call->layout, row).owner)) return SA_NO_POSITION;
    if (!call->groups) return row;
    uint64_t group = row / call->elements;
    return row + group + 1 + (group + 1 < call->groups); /* that many scale chunks stand before it */
}

/* ---- verified sums */

void sa_call_read(struct sa_call *call, uint32_t stream, uint64_t chunk, uint64_t position, uint32_t kind, uint8_t *payload) {
    call->form->read(call, position, payload);
    if (!call->verified || sa_op(kind) == SA_OP_MAX) return;
    struct sa_tag_terms terms = call->form->terms(call, position);
    if (!terms.gives_nothing) sa_verified_put_tag(call->verified, stream, chunk, &terms, payload);
    if (call->verified->unmasked) sa_verified_mask(call->verified, stream, chunk, payload);
}

const uint8_t *sa_call_unmasked(const struct sa_call *call, uint32_t stream, uint64_t chunk, uint32_t kind,
                                const uint8_t *payload) {
    if (!call->verified || !call->verified->unmasked || sa_op(kind) == SA_OP_MAX) return payload;
    return sa_verified_unmask(call->verified, stream, chunk, kind, payload);
}

SA_VECTORISED static uint32_t sa_count_below(const sa_uint32_at *restrict result, uint32_t count,
                                             const uint32_t *restrict local) {
    uint32_t below = 0;
    for (uint32_t i = 0; i < count; i++) below += (int32_t)SA_BE32(result[i]) < (int32_t)SA_BE32(local[i]);
    return below;
}

int sa_call_fits(struct sa_call *call, uint32_t stream, uint64_t chunk, uint64_t position, uint32_t kind, int gives,
                 const uint8_t *payload) {
    if (!call->verified) return 1;
    if (sa_op(kind) == SA_OP_MAX) {
        if (!gives || call->verified->partial) return 1; /* a maximum of some ranks may be below another's */
        call->form->read(call, position, (uint8_t *)call->scratch);
        return !sa_count_below((const sa_uint32_at *)payload, call->elements, call->scratch);
    }
    struct sa_tag_terms terms = call->form->terms(call, position);
    return terms.ignored || sa_verified_fits(call->verified, stream, chunk, kind, &terms, payload);
}
