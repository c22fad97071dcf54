/* See execution.h. */
#define _GNU_SOURCE
#include "transport/native/hosts/execution.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/limbs.h"
#include "transport/native/hosts/ps_sum.h"

#define LEFT (-1)

SA_EXPORT struct sa_execution *sa_execution_new(const struct sa_program *program, uint8_t *array, uint8_t *scratch,
                                                uint32_t dtype, uint32_t combine,
                                                sa_combine_elsewhere combine_elsewhere) {
    size_t nodes = program->nodes, members = program->members;
    size_t words = 3 * nodes + members;
    struct sa_execution *execution = malloc(sizeof *execution + words * sizeof(uint32_t) + nodes);
    if (!execution) return NULL;
    *execution = (struct sa_execution){.program = program, .array = array, .scratch = scratch, .dtype = dtype,
                                  .combine = combine, .combine_elsewhere = combine_elsewhere,
                                  .left = program->nodes};
    execution->waits = (int32_t *)(execution + 1);
    execution->ready = (uint32_t *)(execution->waits + nodes);
    execution->stack = execution->ready + nodes;
    execution->expected = execution->stack + nodes;
    execution->flags = (uint8_t *)(execution->expected + members);
    memcpy(execution->waits, program->waits, nodes * sizeof *execution->waits);
    for (uint32_t member = 0; member < members; member++)
        execution->expected[sa_program_member(program, member)] = program->expected[member];
    memset(execution->flags, 0, nodes);
    return execution;
}

SA_EXPORT void sa_execution_free(struct sa_execution *execution) {
    if (!execution) return;
    for (uint32_t node = 0; execution->held && node < execution->program->nodes; node++)
        free(execution->held[node]);
    free(execution->held);
    free(execution);
}

/* Memory. */

/* Piece p of n begins at p * elements / n. A turned program has `low` in the piece that lies so many turns later. */
struct sa_range sa_program_turned_range(const struct sa_program *program, uint32_t node) {
    uint64_t count = program->members, elements = program->elements, low = (uint64_t)program->lows[node];
    uint64_t piece = (low * count + count - 1) / elements, other = sa_program_member(program, (uint32_t)piece);
    uint64_t begin = other * elements / count + low - piece * elements / count;
    bool is_last = (uint64_t)program->highs[node] == (piece + 1) * elements / count;
    uint64_t end = is_last ? (other + 1) * elements / count : begin + (uint64_t)program->highs[node] - low;
    return (struct sa_range){(int64_t)begin, (int64_t)end};
}

static uint8_t *place_of(const struct sa_execution *execution, int64_t low, int64_t high) {
    const struct sa_program *program = execution->program;
    int64_t elements = (int64_t)program->elements, item = program->itemsize;
    return high <= elements ? execution->array + low * item : execution->scratch + (low - elements) * item;
}

uint8_t *sa_execution_memory(const struct sa_execution *execution, uint32_t node) {
    struct sa_range range = sa_program_range(execution->program, node);
    return place_of(execution, range.low, range.high);
}

uint64_t sa_execution_size_bytes(const struct sa_execution *execution, uint32_t node) {
    struct sa_range range = sa_program_range(execution->program, node);
    return (uint64_t)(range.high - range.low) * execution->program->itemsize;
}

/* Applying. */

#define MAXIMUM(type)                                                                                            \
    SA_VECTORISED static void maximum_##type(sa_##type##_at *target, const sa_##type##_at *source, uint64_t count) { \
        for (uint64_t i = 0; i < count; i++)                                                                      \
            target[i] = target[i] > source[i] ? target[i] : source[i];                                                  \
    }

typedef int32_t SA_ANYWHERE sa_int32_at;

MAXIMUM(int32)
MAXIMUM(int64)

static void combine(const struct sa_execution *execution, uint8_t *target, const uint8_t *source, uint64_t count) {
    if (execution->combine == SA_COMBINE_ELSEWHERE)
        execution->combine_elsewhere(execution->dtype, target, source, count);
    else if (execution->combine == SA_COMBINE_SUM)
        sa_ps_add(execution->dtype, target, source, count);
    else if (execution->dtype == SA_INT32)
        maximum_int32((sa_int32_at *)target, (const sa_int32_at *)source, count);
    else if (execution->dtype == SA_INT64)
        maximum_int64((sa_int64_at *)target, (const sa_int64_at *)source, count);
}

/* data: of the message; NULL where it lies in its place already, or there is none. */
static void apply(struct sa_execution *execution, uint32_t node, const uint8_t *data) {
    const struct sa_program *program = execution->program;
    if (!execution->array) return;
    uint8_t *target = sa_execution_memory(execution, node);
    uint64_t count = sa_execution_size_bytes(execution, node) / program->itemsize;
    if (program->kinds[node] == SA_NODE_LOCAL) {
        int64_t source = program->sources[node];
        combine(execution, target, place_of(execution, source, source + (int64_t)count), count);
    } else if (data && program->kinds[node] == SA_NODE_COMBINE) {
        combine(execution, target, data, count);
    } else if (data) {
        memcpy(target, data, count * program->itemsize);
    }
}

static void apply_spare(struct sa_execution *execution, uint32_t node, struct sa_spare *spare) {
    apply(execution, node, spare ? spare->data : NULL);
    sa_spares_give(execution->spares, spare);
}

/* A complete node lets those go on that wait for it. */

static void note_change(struct sa_execution *execution) {
    struct sa_changed *changed = execution->changed;
    if (!changed || execution->is_listed) return;
    execution->is_listed = true;
    execution->next_changed = NULL;
    *changed->end = execution;
    changed->end = &execution->next_changed;
}

static void make_ready(struct sa_execution *execution, uint32_t node) {
    execution->ready[execution->ready_end++] = node;
    execution->flags[node] |= SA_READY;
}

static void complete(struct sa_execution *execution, uint32_t node) {
    const struct sa_program *program = execution->program;
    uint32_t depth = 0;
    execution->stack[depth++] = node;
    execution->left--;
    while (depth) {
        node = execution->stack[--depth];
        for (uint32_t i = program->after_first[node]; i < program->after_first[node + 1]; i++) {
            uint32_t next = program->after[i];
            if (--execution->waits[next]) continue;
            if (program->kinds[next] == SA_NODE_SEND) {
                make_ready(execution, next);
                continue;
            }
            if (program->kinds[next] != SA_NODE_LOCAL) {
                if (!(execution->flags[next] & SA_ARRIVED)) continue;
                apply_spare(execution, next, execution->held ? execution->held[next] : NULL);
                if (execution->held) execution->held[next] = NULL;
            } else {
                apply(execution, next, NULL);
            }
            execution->left--;
            execution->stack[depth++] = next;
        }
    }
}

static int by_segment(const void *node, const void *other, void *program) {
    const struct sa_label *labels = ((const struct sa_program *)program)->labels;
    uint32_t a = *(const uint32_t *)node, b = *(const uint32_t *)other;
    if (labels[a].segment != labels[b].segment) return labels[a].segment < labels[b].segment ? -1 : 1;
    return a < b ? -1 : a > b;
}

SA_EXPORT void sa_execution_start(struct sa_execution *execution) {
    const struct sa_program *program = execution->program;
    for (uint32_t node = 0; node < program->nodes; node++) {
        if (program->waits[node]) continue;
        if (program->kinds[node] == SA_NODE_SEND) {
            make_ready(execution, node);
        } else if (program->kinds[node] == SA_NODE_LOCAL) {
            apply(execution, node, NULL);
            complete(execution, node);
        }
    }
    /* The first segments to all, so that all can begin. */
    qsort_r(execution->ready, execution->ready_end, sizeof *execution->ready, by_segment, (void *)program);
    note_change(execution);
}

/* Messages. */

static int compare(const struct sa_label *a, const struct sa_label *b) {
    if (a->member != b->member) return a->member < b->member ? -1 : 1;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return a->segment < b->segment ? -1 : a->segment > b->segment;
}

int64_t sa_execution_find(const struct sa_execution *execution, const struct sa_label *from) {
    const struct sa_program *program = execution->program;
    uint32_t low = 0, high = program->arriving, turn = program->turn;
    struct sa_label label = *from;
    if (turn) label.member = label.member < turn ? label.member + program->members - turn : label.member - turn;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare(&label, &program->arrivals[middle]);
        if (!order) return program->arrival_nodes[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

SA_EXPORT uint8_t *sa_execution_place(struct sa_execution *execution, const struct sa_label *from,
                                      uint64_t size_bytes) {
    int64_t node = sa_execution_find(execution, from);
    if (node < 0 || execution->waits[node] || execution->program->kinds[node] != SA_NODE_OVERWRITE) return NULL;
    if (!sa_execution_awaits(execution, (uint32_t)node)) return NULL;
    if (sa_execution_size_bytes(execution, (uint32_t)node) != size_bytes) return NULL;
    execution->flags[node] |= SA_PLACED;
    return sa_execution_memory(execution, (uint32_t)node);
}

static void note_arrival(struct sa_execution *execution, uint32_t node, uint32_t sender) {
    execution->flags[node] |= SA_ARRIVED;
    execution->expected[sender]--;
    execution->moves++;
}

int sa_execution_take(struct sa_execution *execution, uint32_t node, uint32_t sender, struct sa_spare *spare) {
    if (execution->waits[node] && spare) {
        if (!execution->held) execution->held = calloc(execution->program->nodes, sizeof(struct sa_spare *));
        if (!execution->held) {
            sa_spares_give(execution->spares, spare);
            return -ENOMEM;
        }
        execution->held[node] = spare;
    }
    note_arrival(execution, node, sender);
    if (execution->waits[node]) return 0;
    apply_spare(execution, node, spare);
    complete(execution, node);
    note_change(execution);
    return 0;
}

SA_EXPORT int sa_execution_receive(struct sa_execution *execution, const struct sa_label *from, const uint8_t *data,
                                   uint64_t size_bytes) {
    int64_t index = sa_execution_find(execution, from);
    if (index < 0) return SA_UNFIT_UNEXPECTED;
    uint32_t node = (uint32_t)index;
    if (execution->flags[node] & (SA_ARRIVED | SA_CLAIMED)) return SA_UNFIT_TWICE;
    if (size_bytes != sa_execution_size_bytes(execution, node)) return SA_UNFIT_SIZE;
    bool is_there = execution->flags[node] & SA_PLACED && data == sa_execution_memory(execution, node);
    if (!size_bytes || is_there) return sa_execution_take(execution, node, from->member, NULL);
    if (execution->waits[node]) {
        struct sa_spares none = {0};
        struct sa_spare *spare = sa_spares_take(execution->spares ? execution->spares : &none, size_bytes);
        if (!spare) return -ENOMEM;
        memcpy(spare->data, data, size_bytes);
        return sa_execution_take(execution, node, from->member, spare);
    }
    note_arrival(execution, node, from->member);
    apply(execution, node, data);
    complete(execution, node);
    note_change(execution);
    return 0;
}

SA_EXPORT void sa_execution_sent(struct sa_execution *execution, uint32_t node) {
    execution->waits[node] = LEFT;
    execution->moves++;
    complete(execution, node);
    note_change(execution);
}

SA_EXPORT int64_t sa_execution_next(struct sa_execution *execution) {
    if (execution->ready_first == execution->ready_end) return -1;
    uint32_t node = execution->ready[execution->ready_first++];
    execution->flags[node] &= (uint8_t)~SA_READY;
    return node;
}

static bool any_send(const struct sa_execution *execution, uint32_t member, bool has_left_us) {
    const struct sa_program *program = execution->program;
    for (uint32_t node = 0; node < program->nodes; node++) {
        if (program->kinds[node] != SA_NODE_SEND || sa_program_to(program, node) != member) continue;
        bool is_ours = execution->waits[node] > 0 || execution->flags[node] & SA_READY;
        if (has_left_us ? !is_ours && execution->waits[node] != LEFT : is_ours) return true;
    }
    return false;
}

SA_EXPORT bool sa_execution_sends_left_to(const struct sa_execution *execution, uint32_t member) {
    return any_send(execution, member, false);
}

SA_EXPORT bool sa_execution_leaving_to(const struct sa_execution *execution, uint32_t member) {
    return any_send(execution, member, true);
}

SA_EXPORT uint32_t sa_execution_expects(const struct sa_execution *execution, uint32_t member) {
    return member < execution->program->members ? execution->expected[member] : 0;
}

SA_EXPORT uint32_t sa_execution_left(const struct sa_execution *execution) { return execution->left; }

SA_EXPORT uint64_t sa_execution_moves(const struct sa_execution *execution) { return execution->moves; }
