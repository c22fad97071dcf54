/* See compile.h. Memory is cut at all ends of segments into pieces; each knows its last writer and the readers since. */
#include "transport/native/hosts/compile.h"

#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/room.h"

#define NONE (-1)
#define LIST_FIRST 1024u
#define NOBODY UINT32_MAX

/* An operation reads or writes low ... high - 1, or both. */
struct operation {
    uint8_t kind; /* enum sa_node_kind */
    uint32_t member, step;
    int64_t low, high, source;
};

/* The readers of a piece since it was written. */
struct reader {
    int32_t node, next;
};

struct edge {
    uint32_t earlier, later;
};

struct compiler {
    const struct sa_operations *operations;
    int64_t segment_elements;              /* elements of a segment, at most */
    int64_t *ends;             /* sorted, each once; the place of a piece is that of its beginning */
    uint32_t end_count, nodes, arriving;
    int32_t *writers, *readers; /* for each piece, then for the empty range at each end; readers point into
                                   `reader_list` */
    int32_t *waited_by;        /* of each node: the last that was found to wait for it */
    struct reader *reader_list;
    uint32_t reader_count, reader_most;
    struct edge *edges;
    uint32_t edge_count, edge_most;
    struct sa_program *program;
    int failed;
};

static const int64_t *next_operation(const int64_t *values, uint8_t fields, struct operation *operation) {
    if (fields == 3) {
        *operation = (struct operation){SA_NODE_LOCAL, NOBODY, 0, values[0], values[1], values[2]};
    } else {
        uint8_t kind = fields == 4 ? SA_NODE_SEND : values[4] ? SA_NODE_COMBINE : SA_NODE_OVERWRITE;
        *operation = (struct operation){kind, (uint32_t)values[1], (uint32_t)values[0], values[2], values[3], 0};
    }
    return values + fields;
}

static uint32_t segments_of(const struct compiler *compiler, const struct operation *operation) {
    int64_t size = operation->high - operation->low;
    return size ? (uint32_t)((size + compiler->segment_elements - 1) / compiler->segment_elements) : 1;
}

/* Where memory is cut. */

static int by_value(const void *value, const void *other) {
    int64_t a = *(const int64_t *)value, b = *(const int64_t *)other;
    return a < b ? -1 : a > b;
}

static uint64_t cut(const struct compiler *compiler, int64_t low, int64_t high, int64_t *ends) {
    uint64_t count = 0;
    for (int64_t at = low; at < high; at += compiler->segment_elements) ends[count++] = at;
    ends[count++] = high;
    return count;
}

static int find_ends(struct compiler *compiler) {
    const struct sa_operations *operations = compiler->operations;
    struct operation operation, before = {.low = NONE};
    const int64_t *values = operations->values;
    uint64_t room = 0, count = 0;
    for (uint32_t i = 0; i < operations->count; i++) {
        values = next_operation(values, operations->fields[i], &operation);
        uint32_t segments = segments_of(compiler, &operation);
        compiler->nodes += segments;
        if (operation.kind == SA_NODE_COMBINE || operation.kind == SA_NODE_OVERWRITE) compiler->arriving += segments;
        room += 2 * ((uint64_t)segments + 1);
    }
    int64_t *ends = compiler->ends = malloc((room + 1) * sizeof *ends);
    if (!ends) return NONE;
    values = operations->values;
    for (uint32_t i = 0; i < operations->count; i++) {
        values = next_operation(values, operations->fields[i], &operation);
        if (operation.low == before.low && operation.high == before.high && operation.kind != SA_NODE_LOCAL) continue;
        count += cut(compiler, operation.low, operation.high, ends + count);
        if (operation.kind == SA_NODE_LOCAL)
            count += cut(compiler, operation.source, operation.source + operation.high - operation.low, ends + count);
        before = operation;
    }
    qsort(ends, count, sizeof *ends, by_value);
    for (uint64_t i = 0; i < count; i++)
        if (!i || ends[i] != ends[i - 1]) ends[compiler->end_count++] = ends[i];
    return 0;
}

static uint32_t place_of(const struct compiler *compiler, int64_t end) {
    uint32_t low = 0, high = compiler->end_count - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (compiler->ends[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns the first piece of a range, and how many there are. */
static uint32_t pieces_of(const struct compiler *compiler, int64_t low, int64_t high, uint32_t *first) {
    *first = place_of(compiler, low);
    if (low == high) {
        *first += compiler->end_count;
        return 1;
    }
    uint32_t last = *first;
    while (compiler->ends[last] != high) last++;
    return last - *first;
}

/* The edges: an operation waits for those it depends on. */

static void wait_for(struct compiler *compiler, int32_t earlier, uint32_t node) {
    if (earlier == (int32_t)node || compiler->waited_by[earlier] == (int32_t)node || compiler->failed) return;
    compiler->waited_by[earlier] = (int32_t)node;
    struct edge **edges = &compiler->edges;
    compiler->failed |= !sa_takes_one(edges, compiler->edge_count, &compiler->edge_most, LIST_FIRST, sizeof **edges);
    if (compiler->failed) return;
    compiler->edges[compiler->edge_count++] = (struct edge){(uint32_t)earlier, node};
}

static void read_range(struct compiler *compiler, uint32_t node, int64_t low, int64_t high) {
    uint32_t first, count = pieces_of(compiler, low, high, &first);
    for (uint32_t piece = first; piece < first + count && !compiler->failed; piece++) {
        if (compiler->writers[piece] != NONE) wait_for(compiler, compiler->writers[piece], node);
        struct reader **list = &compiler->reader_list;
        compiler->failed |= !sa_takes_one(list, compiler->reader_count, &compiler->reader_most, LIST_FIRST, sizeof **list);
        if (compiler->failed) return;
        compiler->reader_list[compiler->reader_count] = (struct reader){(int32_t)node, compiler->readers[piece]};
        compiler->readers[piece] = (int32_t)compiler->reader_count++;
    }
}

static void write_range(struct compiler *compiler, uint32_t node, int64_t low, int64_t high) {
    uint32_t first, count = pieces_of(compiler, low, high, &first);
    for (uint32_t piece = first; piece < first + count; piece++) {
        int32_t at = compiler->readers[piece];
        if (at == NONE && compiler->writers[piece] != NONE) wait_for(compiler, compiler->writers[piece], node);
        for (; at != NONE; at = compiler->reader_list[at].next) /* which wait for the last writer themselves */
            wait_for(compiler, compiler->reader_list[at].node, node);
        compiler->readers[piece] = NONE;
        compiler->writers[piece] = (int32_t)node;
    }
}

/* The program. */

static struct sa_program *new_program(const struct compiler *compiler, uint32_t itemsize) {
    uint64_t nodes = compiler->nodes, arriving = compiler->arriving, edges = compiler->edge_count;
    uint32_t members = compiler->operations->members;
    uint64_t bytes = nodes * (3 * sizeof(int64_t) + sizeof(struct sa_label) + 2 * sizeof(uint32_t) + 1);
    bytes += arriving * (sizeof(struct sa_label) + sizeof(uint32_t)) + (edges + members + 1) * sizeof(uint32_t);
    struct sa_program *program = calloc(1, sizeof *program + bytes);
    if (!program) return NULL;
    *program = (struct sa_program){(uint32_t)nodes, (uint32_t)arriving, members, itemsize, compiler->operations->elements,
                                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0};
    program->lows = (int64_t *)(program + 1);
    program->highs = program->lows + nodes;
    program->sources = program->highs + nodes;
    program->labels = (struct sa_label *)(program->sources + nodes);
    program->arrivals = program->labels + nodes;
    program->waits = (int32_t *)(program->arrivals + arriving);
    program->after_first = (uint32_t *)(program->waits + nodes);
    program->after = program->after_first + nodes + 1;
    program->arrival_nodes = program->after + edges;
    program->expected = program->arrival_nodes + arriving;
    program->kinds = (uint8_t *)(program->expected + members);
    return program;
}

struct arrival {
    struct sa_label label;
    uint32_t node;
};

static int by_label(const void *label, const void *other) {
    const struct sa_label *a = label, *b = other;
    if (a->member != b->member) return a->member < b->member ? -1 : 1;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return a->segment < b->segment ? -1 : a->segment > b->segment;
}

/* Sorted, each once; the program is being made, so its arrays may be written. */
static int list_arrivals(struct sa_program *program, struct arrival *arrivals) {
    bool is_sorted = true;
    for (uint32_t i = 1; i < program->arriving && is_sorted; i++)
        is_sorted = by_label(&arrivals[i - 1], &arrivals[i]) < 0;
    if (!is_sorted) qsort(arrivals, program->arriving, sizeof *arrivals, by_label);
    for (uint32_t i = 0; i < program->arriving; i++) {
        if (i && by_label(&arrivals[i - 1], &arrivals[i]) >= 0) return NONE;
        ((struct sa_label *)program->arrivals)[i] = arrivals[i].label;
        ((uint32_t *)program->arrival_nodes)[i] = arrivals[i].node;
        ((uint32_t *)program->expected)[arrivals[i].label.member]++;
    }
    return 0;
}

static int write_nodes(const struct compiler *compiler, struct sa_program *program) {
    const struct sa_operations *operations = compiler->operations;
    struct arrival *arrivals = malloc((compiler->arriving + 1) * sizeof *arrivals);
    if (!arrivals) return NONE;
    const int64_t *values = operations->values;
    struct operation operation;
    uint32_t node = 0, arriving = 0;
    for (uint32_t i = 0; i < operations->count; i++) {
        values = next_operation(values, operations->fields[i], &operation);
        uint32_t segments = segments_of(compiler, &operation);
        for (uint32_t segment = 0; segment < segments; segment++, node++) {
            int64_t begin = segment * compiler->segment_elements, low = operation.low + begin;
            bool is_send = operation.kind == SA_NODE_SEND, is_local = operation.kind == SA_NODE_LOCAL;
            struct sa_label label = {operation.member, operation.step, segment};
            ((uint8_t *)program->kinds)[node] = operation.kind;
            ((int64_t *)program->lows)[node] = low;
            ((int64_t *)program->highs)[node] = segment + 1 == segments ? operation.high : low + compiler->segment_elements;
            ((int64_t *)program->sources)[node] = is_local ? operation.source + begin : 0;
            ((struct sa_label *)program->labels)[node] = is_send ? label : (struct sa_label){NOBODY, 0, 0};
            if (!is_send && !is_local) arrivals[arriving++] = (struct arrival){label, node};
        }
    }
    int result = list_arrivals(program, arrivals);
    free(arrivals);
    return result;
}

static void write_edges(const struct compiler *compiler, struct sa_program *program) {
    uint32_t *first = (uint32_t *)program->after_first, *after = (uint32_t *)program->after;
    for (uint32_t i = 0; i < compiler->edge_count; i++) {
        first[compiler->edges[i].earlier + 1]++;
        ((int32_t *)program->waits)[compiler->edges[i].later]++;
    }
    for (uint32_t node = 0; node < program->nodes; node++) first[node + 1] += first[node];
    for (uint32_t i = 0; i < compiler->edge_count; i++) after[first[compiler->edges[i].earlier]++] = compiler->edges[i].later;
    memmove(first + 1, first, program->nodes * sizeof *first);
    first[0] = 0;
}

static void find_edges(struct compiler *compiler) {
    const struct sa_operations *operations = compiler->operations;
    const int64_t *values = operations->values;
    struct operation operation;
    uint32_t node = 0;
    for (uint32_t i = 0; i < operations->count && !compiler->failed; i++) {
        values = next_operation(values, operations->fields[i], &operation);
        int64_t low = operation.low, shift = operation.source - low;
        do {
            int64_t high = low + compiler->segment_elements < operation.high ? low + compiler->segment_elements : operation.high;
            if (operation.kind == SA_NODE_SEND) read_range(compiler, node, low, high);
            if (operation.kind == SA_NODE_LOCAL) read_range(compiler, node, low + shift, high + shift);
            if (operation.kind != SA_NODE_SEND) write_range(compiler, node, low, high);
            node++;
            low = high;
        } while (low < operation.high);
    }
}

static struct sa_program *compile(struct compiler *compiler, uint32_t itemsize) {
    if (find_ends(compiler)) return NULL;
    uint64_t places = 2 * (uint64_t)compiler->end_count;
    compiler->writers = malloc((2 * places + compiler->nodes + 1) * sizeof(int32_t));
    if (!compiler->writers) return NULL;
    compiler->readers = compiler->writers + places;
    compiler->waited_by = compiler->readers + places;
    memset(compiler->writers, 0xff, (2 * places + compiler->nodes) * sizeof(int32_t));
    find_edges(compiler);
    if (compiler->failed) return NULL;
    struct sa_program *program = new_program(compiler, itemsize);
    if (program && write_nodes(compiler, program)) {
        free(program);
        return NULL;
    }
    if (program) write_edges(compiler, program);
    return program;
}

SA_EXPORT struct sa_program *sa_program_compile(const struct sa_operations *operations, uint32_t itemsize,
                                                uint32_t segment_bytes) {
    uint32_t segment_elements = segment_bytes / itemsize;
    struct compiler compiler = {.operations = operations, .segment_elements = segment_elements ? segment_elements : 1};
    struct sa_program *program = compile(&compiler, itemsize);
    free(compiler.ends);
    free(compiler.writers);
    free(compiler.reader_list);
    free(compiler.edges);
    return program;
}

SA_EXPORT struct sa_program *sa_program_turned(const struct sa_program *first, uint32_t turn) {
    struct sa_program *turned = malloc(sizeof *turned);
    if (!turned) return NULL;
    *turned = *first;
    turned->turn = turn;
    return turned;
}

SA_EXPORT void sa_program_free(struct sa_program *program) { free(program); }
