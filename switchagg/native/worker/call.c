#include "worker/call.h"

#include <string.h>

#include "rule/wire.h"

uint64_t sa_call_codes(const struct sa_coding *coding, uint64_t count) {
    return coding->codec->rounds ? (count + coding->width - 1) / coding->width : 0;
}

/* How many chunks may be sent once the codes of the first `known` groups are agreed (W4). */
static uint64_t sa_ready_after(const struct sa_call *call, uint64_t known) {
    if (known == call->groups) return call->chunks;
    return 1 + known * (call->coding.elements + 1ull) + (known + 1 < call->groups);
}

void sa_call_init(struct sa_call *call, const struct sa_coding *coding, uint32_t op, void *data, uint64_t count,
                  int16_t *codes) {
    uint64_t rows = (count + coding->width - 1) / coding->width;
    uint64_t groups = coding->codec->rounds ? (rows + coding->elements - 1) / coding->elements : 0;
    *call = (struct sa_call){
        .coding = *coding,
        .data = data,
        .count = count,
        .rows = rows,
        .groups = groups,
        .chunks = rows + groups,
        .codes = codes,
        .op = op,
    };
    call->ready = sa_ready_after(call, 0);
}

/* What a chunk carries: a row if `scale` is 0, else the codes of a group. */
struct sa_content {
    uint64_t index;
    int scale;
};

static struct sa_content sa_content(const struct sa_call *call, uint64_t position) {
    if (!call->groups) return (struct sa_content){position, 0};
    if (position == 0) return (struct sa_content){0, 1};
    uint64_t block = call->coding.elements + 1ull; /* a group's data and, before it, the next group's scale chunk */
    uint64_t group = (position - 1) / block, rest = position - 1 - group * block;
    if (group + 1 < call->groups) {
        if (rest == 0) return (struct sa_content){group + 1, 1};
        rest--;
    }
    return (struct sa_content){group * call->coding.elements + rest, 0};
}

static uint32_t sa_values_in(const struct sa_call *call, uint64_t row) {
    return row + 1 < call->rows ? call->coding.width : (uint32_t)(call->count - row * call->coding.width);
}

static uint8_t *sa_row(const struct sa_call *call, uint64_t row) {
    return call->data + row * call->coding.width * sa_value_bytes(call->coding.dtype);
}

static void sa_put_code(uint8_t *at, int32_t code) {
    uint32_t value = SA_BE32((uint32_t)code);
    memcpy(at, &value, sizeof value);
}

/* Store this worker's codes of the rows before `end` (F1). */
static void sa_prepare_until(struct sa_call *call, uint64_t end) {
    const struct sa_coding *coding = &call->coding;
    if (end > call->rows) end = call->rows;
    for (uint64_t row = call->prepared; row < end; row++)
        call->codes[row] = (int16_t)coding->codec->prepare(coding, sa_row(call, row), sa_values_in(call, row));
    if (end > call->prepared) call->prepared = end;
}

/* This worker's codes of a group; the least where there is no row. */
static void sa_own_codes(struct sa_call *call, uint64_t group, uint8_t *payload) {
    uint32_t elements = call->coding.elements;
    uint64_t row = group * elements;
    sa_prepare_until(call, row + elements);
    for (uint32_t i = 0; i < elements; i++, row++)
        sa_put_code(payload + 4ull * i, row < call->rows ? call->codes[row] : SA_CODE_LEAST);
}

static void sa_agree(struct sa_call *call, uint64_t group, const uint8_t *payload) {
    uint64_t first = group * call->coding.elements, rest = call->rows - first;
    uint32_t count = rest < call->coding.elements ? (uint32_t)rest : call->coding.elements;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, payload + 4ull * i, sizeof value);
        call->codes[first + i] = sa_agreed((int32_t)SA_BE32(value));
    }
    /* Of two scale chunks at most, the next two groups', the results can be outstanding: `ready` allows no more. */
    if (group != call->known) {
        call->ahead = 1;
        return;
    }
    call->known += 1 + call->ahead;
    call->ahead = 0;
    call->ready = sa_ready_after(call, call->known);
}

uint32_t sa_call_read(struct sa_call *call, uint64_t position, uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) {
        sa_own_codes(call, content.index, payload);
        return SA_OP_MAX;
    }
    /* A row of the group after the next, with each one sent: read once for all, they would come from memory at its pace. */
    if (call->groups) sa_prepare_until(call, content.index + 2 * (uint64_t)call->coding.elements + 1);
    call->coding.codec->encode(&call->coding, sa_row(call, content.index), sa_values_in(call, content.index),
                               call->groups ? call->codes[content.index] : 0, payload);
    return call->op;
}

void sa_call_write(struct sa_call *call, uint64_t position, const uint8_t *payload) {
    struct sa_content content = sa_content(call, position);
    if (content.scale) {
        sa_agree(call, content.index, payload);
        return;
    }
    call->coding.codec->decode(&call->coding, sa_row(call, content.index), sa_values_in(call, content.index),
                               call->groups ? call->codes[content.index] : 0, payload);
}
