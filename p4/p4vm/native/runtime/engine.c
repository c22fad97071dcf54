/* An engine's life, and what the control plane sets in it. */
#include <stdlib.h>

#include "p4vm.h"

static void *zeros(uint64_t count, uint64_t size) {
    return calloc(count ? count : 1, size ? size : 1);
}

static struct p4_table *new_tables(uint32_t count, const struct p4_table_shape *shapes) {
    struct p4_table *tables = zeros(count, sizeof *tables);
    for (uint32_t i = 0; tables && i < count; i++) {
        tables[i].words = shapes[i].words;
        tables[i].range_words = shapes[i].range_words;
        tables[i].ranges = shapes[i].ranges;
        tables[i].range_limbs = shapes[i].range_limbs;
    }
    return tables;
}

static int allocate(struct p4_engine *engine, const struct p4_program *program) {
    engine->aligned = zeros(program->limits.packet_bytes + 16ull, 1);
    engine->registers = zeros(program->register_groups, sizeof *engine->registers);
    engine->tables = new_tables(program->tables, program->table_shapes);
    engine->value_sets = new_tables(program->value_sets, program->value_set_shapes);
    engine->profiles = zeros(program->profiles, sizeof *engine->profiles);
    engine->counters = zeros(program->counters, sizeof *engine->counters);
    engine->meters = zeros(program->meters, sizeof *engine->meters);
    engine->state = aligned_alloc(16, (program->state_size + 15ull) & ~15ull);
    engine->copy = aligned_alloc(16, (program->state_size + 15ull) & ~15ull);
    if (!engine->aligned || !engine->registers || !engine->tables || !engine->value_sets || !engine->profiles ||
        !engine->counters || !engine->meters || !engine->state || !engine->copy)
        return -1;
    for (uint32_t i = 0; i < program->register_groups; i++)
        if (!(engine->registers[i] = zeros(program->groups[i].cells, program->groups[i].cell_bytes))) return -1;
    for (uint32_t i = 0; i < program->counters; i++)
        if (p4_engine_grow_counter(engine, i, program->counter_cells[i].cells)) return -1;
    for (uint32_t i = 0; i < program->meters; i++) {
        engine->meters[i].by_bytes = program->meter_cells[i].by_bytes;
        if (p4_engine_grow_meter(engine, i, program->meter_cells[i].cells)) return -1;
    }
    for (uint32_t i = 0; i < program->tables; i++)
        if (p4_table_default(&engine->tables[i], 0, NULL, 0)) return -1;
    return 0;
}

struct p4_engine *p4_engine_new(const struct p4_program *program) {
    if (program->abi != P4_ABI) return NULL;
    struct p4_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return NULL;
    engine->program = program;
    engine->random = program->limits.seed;
    if (allocate(engine, program)) {
        p4_engine_free(engine);
        return NULL;
    }
    return engine;
}

static void free_directory(struct p4_directory *directory) {
    for (uint32_t i = 0; i < directory->count; i++) free(directory->entry[i].replica);
    free(directory->entry);
}

void p4_engine_free(struct p4_engine *engine) {
    const struct p4_program *program = engine->program;
    for (uint32_t i = 0; engine->registers && i < program->register_groups; i++) free(engine->registers[i]);
    for (uint32_t i = 0; engine->tables && i < program->tables; i++) p4_table_free(&engine->tables[i]);
    for (uint32_t i = 0; engine->value_sets && i < program->value_sets; i++) p4_table_free(&engine->value_sets[i]);
    for (uint32_t i = 0; engine->profiles && i < program->profiles; i++) p4_profile_free(&engine->profiles[i]);
    for (uint32_t i = 0; engine->counters && i < program->counters; i++) free(engine->counters[i].cell);
    for (uint32_t i = 0; engine->meters && i < program->meters; i++) free(engine->meters[i].cell);
    free_directory(&engine->groups);
    free_directory(&engine->sessions);
    free_directory(&engine->depths);
    p4_records_free(&engine->log);
    p4_records_free(&engine->digests);
    p4_pipeline_free(engine);
    free(engine->registers);
    free(engine->tables);
    free(engine->value_sets);
    free(engine->profiles);
    free(engine->counters);
    free(engine->meters);
    free(engine->aligned);
    free(engine->outputs);
    free(engine->data);
    free(engine->state);
    free(engine->copy);
    free(engine);
}

/* As when its rates were set. */
static void refill(struct p4_meter *meter) {
    for (uint32_t i = 0; i < meter->count; i++) {
        meter->bucket[i].tokens = meter->bucket[i].burst;
        meter->bucket[i].filled = 0;
    }
}

void p4_engine_reset(struct p4_engine *engine) {
    const struct p4_program *program = engine->program;
    for (uint32_t i = 0; i < program->register_groups; i++)
        memset(engine->registers[i], 0, program->groups[i].cells * program->groups[i].cell_bytes);
    for (uint32_t i = 0; i < program->counters; i++)
        memset(engine->counters[i].cell, 0, engine->counters[i].cells * sizeof *engine->counters[i].cell);
    for (uint32_t i = 0; i < program->meters; i++)
        for (uint64_t j = 0; j < engine->meters[i].cells; j++) refill(&engine->meters[i].cell[j]);
    p4_records_free(&engine->log);
    p4_records_free(&engine->digests);
    memset(engine->counts, 0, sizeof engine->counts);
    engine->random = program->limits.seed;
}

const struct p4_output *p4_engine_outputs(const struct p4_engine *engine) {
    return engine->outputs;
}

const uint8_t *p4_engine_data(const struct p4_engine *engine) {
    return engine->data;
}

const uint64_t *p4_engine_counts(const struct p4_engine *engine) {
    return engine->counts;
}

/* ---- tables */

int p4_engine_set_table(struct p4_engine *engine, int value_set, uint32_t table, uint32_t count, const uint64_t *values,
                        const uint64_t *masks, const uint64_t *bounds, const struct p4_entry *entries,
                        const uint64_t *arguments, uint64_t argument_count) {
    struct p4_table *tables = value_set ? engine->value_sets : engine->tables;
    return p4_table_set(&tables[table], count, values, masks, bounds, entries, arguments, argument_count);
}

int p4_engine_set_default(struct p4_engine *engine, uint32_t table, uint32_t action, const uint64_t *arguments,
                          uint32_t argument_count) {
    return p4_table_default(&engine->tables[table], action, arguments, argument_count);
}

int p4_engine_set_profile(struct p4_engine *engine, uint32_t profile, uint32_t member_count, const uint32_t *calls,
                          const uint64_t *arguments, uint64_t argument_count, uint32_t group_count,
                          const uint32_t *firsts, const uint32_t *chosen) {
    return p4_profile_set(&engine->profiles[profile], member_count, calls, arguments, argument_count, group_count,
                          firsts, chosen);
}

/* ---- groups and sessions */

/* Where the number stands, or would. */
static uint32_t place_of(const struct p4_directory *directory, uint32_t id) {
    uint32_t low = 0, high = directory->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (directory->entry[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct p4_replicas *p4_directory_find(const struct p4_directory *directory, uint32_t id) {
    uint32_t at = place_of(directory, id);
    return at < directory->count && directory->entry[at].id == id ? &directory->entry[at] : NULL;
}

static void take_out(struct p4_directory *directory, uint32_t at) {
    free(directory->entry[at].replica);
    directory->count--;
    memmove(directory->entry + at, directory->entry + at + 1, (directory->count - at) * sizeof *directory->entry);
}

static int put_in(struct p4_directory *directory, uint32_t at, struct p4_replicas replicas) {
    struct p4_replicas *more = realloc(directory->entry, (directory->count + 1ull) * sizeof *more);
    if (!more) return -1;
    directory->entry = more;
    memmove(more + at + 1, more + at, (directory->count - at) * sizeof *more);
    more[at] = replicas;
    directory->count++;
    return 0;
}

int p4_engine_set_replicas(struct p4_engine *engine, int which, uint32_t id, uint32_t count,
                           const struct p4_replica *replicas, uint32_t group, uint32_t truncate) {
    struct p4_directory *directory = which == 0 ? &engine->groups : which == 1 ? &engine->sessions : &engine->depths;
    uint32_t at = place_of(directory, id);
    int known = at < directory->count && directory->entry[at].id == id;
    if (!count && !group) {
        if (known) take_out(directory, at);
        return 0;
    }
    struct p4_replicas entry = {id, count, group, truncate, malloc((count + 1ull) * sizeof *replicas)};
    if (!entry.replica) return -1;
    if (count) memcpy(entry.replica, replicas, count * sizeof *replicas);
    if (known) {
        free(directory->entry[at].replica);
        directory->entry[at] = entry;
        return 0;
    }
    if (!put_in(directory, at, entry)) return 0;
    free(entry.replica);
    return -1;
}

/* ---- cells */

uint8_t *p4_engine_registers(struct p4_engine *engine, uint32_t group) {
    return engine->registers[group];
}

/* `cells` zeros more than there are, at least doubled. Returns NULL without memory. */
static void *grown(void *cell, uint64_t *cells, uint64_t wanted, uint64_t size) {
    uint64_t room = cell && wanted < 2 * *cells ? 2 * *cells : wanted;
    uint8_t *more = cell ? realloc(cell, room * size) : zeros(room, size);
    if (!more) return NULL;
    if (cell) memset(more + *cells * size, 0, (room - *cells) * size);
    *cells = room;
    return more;
}

int p4_engine_grow_counter(struct p4_engine *engine, uint32_t counter, uint64_t cells) {
    struct p4_counters *counters = &engine->counters[counter];
    if (counters->cell && cells <= counters->cells) return 0;
    void *more = grown(counters->cell, &counters->cells, cells, sizeof *counters->cell);
    if (!more) return -1;
    counters->cell = more;
    return 0;
}

int p4_engine_grow_meter(struct p4_engine *engine, uint32_t meter, uint64_t cells) {
    struct p4_meters *meters = &engine->meters[meter];
    if (meters->cell && cells <= meters->cells) return 0;
    void *more = grown(meters->cell, &meters->cells, cells, sizeof *meters->cell);
    if (!more) return -1;
    meters->cell = more;
    return 0;
}

struct p4_counter *p4_engine_counter(struct p4_engine *engine, uint32_t counter, uint64_t index) {
    struct p4_counters *counters = &engine->counters[counter];
    return index < counters->cells ? &counters->cell[index] : NULL;
}

void p4_engine_reset_counter(struct p4_engine *engine, uint32_t counter) {
    struct p4_counters *counters = &engine->counters[counter];
    memset(counters->cell, 0, counters->cells * sizeof *counters->cell);
}

void p4_engine_set_meter(struct p4_engine *engine, uint32_t meter, uint64_t index, uint32_t count, const double *rates,
                         const uint64_t *bursts) {
    if (index >= engine->meters[meter].cells || count > 2) return;
    struct p4_meter *cell = &engine->meters[meter].cell[index];
    memset(cell, 0, sizeof *cell);
    cell->count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t burst = bursts[count - 1 - i];
        cell->bucket[i] = (struct p4_bucket){rates[count - 1 - i], burst, burst, 0};
    }
}
