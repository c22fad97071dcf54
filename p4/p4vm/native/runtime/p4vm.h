/* A generated program and the runtime share these declarations. A program is a `struct p4_program` of constants and
   functions; an engine runs one, one packet at a time. A single thread at a time may use an engine; engines share
   nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bits.h"
#include "tables.h"

#define P4_EXPORT __attribute__((visibility("default")))
#define P4_ABI 2u

struct p4_engine;

/* How a routine ended; 0: at its end or by return. */
enum p4_end {
    P4_EXIT = 1,
    P4_REJECT, /* the parser; the engine's error says why */
    P4_DROP,   /* a bound or an assert: the pass ends at once */
};

enum p4_error {
    P4_NO_ERROR,
    P4_PACKET_TOO_SHORT,
    P4_NO_MATCH,
    P4_STACK_OUT_OF_BOUNDS,
    P4_HEADER_TOO_SHORT,
    P4_PARSER_TIMEOUT,
    P4_PARSER_INVALID_ARGUMENT,
    P4_ERRORS,
};

/* It matches `COUNTS` in native/native_engine.py. */
enum p4_count {
    P4_RECEIVED,
    P4_SENT,
    P4_DROPPED,
    P4_PARSER_REJECTED,
    P4_TOO_MANY_PASSES,
    P4_TOO_MANY_TURNS,
    P4_REGISTER_OUT_OF_RANGE,
    P4_COUNTER_OUT_OF_RANGE,
    P4_METER_OUT_OF_RANGE,
    P4_ASSERT_FAILED,
    P4_ASSUME_FAILED,
    P4_OVERSIZE,
    P4_TOO_MANY_BYTES,
    P4_NO_MEMORY,
    P4_COUNTS,
};

/* It matches `HASHES` in c_code/c_writer.py. */
enum p4_hash {
    P4_CRC32,
    P4_CRC32_CUSTOM,
    P4_CRC16,
    P4_CRC16_CUSTOM,
    P4_RANDOM,
    P4_IDENTITY,
    P4_CSUM16,
    P4_XOR16,
};

/* It matches `PacketPath` of architectures/description.py. */
enum p4_path { P4_NORMAL, P4_UNICAST, P4_MULTICAST, P4_CLONE_I2E, P4_CLONE_E2E, P4_RESUBMIT, P4_RECIRCULATE };

/* A record of the state. */
struct p4_part {
    uint32_t at, size;
};

/* A packet in its pass. bytes: NULL where the pass begins with parsed headers. path: enum p4_path. deparsed_bytes: what
   the deparser put together, after the output so far; -1: nothing yet. */
struct p4_packet {
    void *state;
    const uint8_t *bytes;
    uint64_t size;
    uint32_t port, instance, path, passes;
    int64_t deparsed_bytes;
};

struct p4_limits {
    uint32_t passes, runs, steps, turns, packet_bytes, caused_bytes, records;
    uint64_t seed;
};

struct p4_table_shape {
    uint32_t words, range_words, ranges;
    const uint8_t *range_limbs;
};

/* Registers with as many cells stand side by side, cell by cell. */
struct p4_register_group {
    uint64_t cells, cell_bytes;
};

/* by_bytes: of meters. */
struct p4_cells {
    uint64_t cells;
    uint32_t by_bytes;
};

struct p4_program {
    uint32_t abi;
    uint32_t state_size, part_count;
    const struct p4_part *parts;
    void (*ingress)(struct p4_engine *, struct p4_packet *), (*egress)(struct p4_engine *, struct p4_packet *);
    void (*keep)(uint32_t list, void *to, const void *from); /* a field list's fields */
    uint32_t errors[P4_ERRORS];
    struct p4_limits limits;
    uint32_t tables, profiles, register_groups, counters, meters, value_sets;
    const struct p4_table_shape *table_shapes, *value_set_shapes;
    const struct p4_register_group *groups;
    const struct p4_cells *counter_cells, *meter_cells; /* cells of direct ones: 0, they grow */
};

struct p4_counter {
    uint64_t packets, bytes;
};

struct p4_counters {
    uint64_t cells;
    struct p4_counter *cell;
};

struct p4_bucket {
    double rate;
    uint64_t burst, tokens, filled;
};

/* buckets: the last rate first. */
struct p4_meter {
    uint32_t count;
    struct p4_bucket bucket[2];
};

struct p4_meters {
    uint64_t cells;
    uint32_t by_bytes;
    struct p4_meter *cell;
};

/* The parameters of crc16_custom or crc32_custom; width 0: those of crc16 or crc32. */
struct p4_crc {
    uint32_t width, polynomial, initial, final_xor, reflect_data, reflect_remainder;
};

/* A line of the log or a digest: `id` names the place in the program. */
struct p4_record {
    struct p4_record *next;
    uint32_t id, limbs;
    uint64_t value[];
};

struct p4_records {
    struct p4_record *first, *last;
    uint32_t count;
};

struct p4_replica {
    uint32_t port, instance;
};

struct p4_replicas {
    uint32_t id, count, group, truncate; /* group and truncate: of sessions */
    struct p4_replica *replica;
};

/* Multicast groups or clone sessions, by number. */
struct p4_directory {
    uint32_t count;
    struct p4_replicas *entry; /* in ascending order */
};

/* Field by field as `OUTPUT` in native/native_engine.py. */
struct p4_output {
    uint32_t port, size;
    uint64_t at;
};

/* The requests of a pass. */
struct p4_requests {
    uint32_t clone, clone_session, clone_list;
    uint32_t resubmit, resubmit_list, recirculate, recirculate_list;
    uint32_t truncate; /* bytes; UINT32_MAX: all */
};

struct p4_burst; /* copies that wait for egress, see pipeline.c */
struct p4_again; /* a packet that waits for another pass through ingress */

struct p4_engine {
    const struct p4_program *program;
    /* the packet in the parser */
    const uint8_t *in;
    uint64_t cursor, limit; /* bits */
    uint32_t steps, error;  /* error: 0 after an explicit reject */
    uint8_t *aligned;       /* a header that starts within a byte */
    /* the packet in the deparser */
    uint8_t *out;
    uint64_t out_bits, out_limit;
    uint32_t oversize;
    /* this pass */
    void *current; /* its state */
    uint64_t now, pass;
    uint32_t length; /* bytes of the packet as it entered ingress */
    uint32_t turns, runs;
    uint64_t caused; /* bytes */
    const uint8_t *payload;
    uint64_t payload_size;
    struct p4_requests requests;
    /* state of the program */
    uint64_t random;
    struct p4_crc crc[2]; /* custom: of 16 bits, of 32 */
    void **registers;
    struct p4_table *tables, *value_sets;
    struct p4_profile *profiles;
    struct p4_counters *counters;
    struct p4_meters *meters;
    struct p4_directory groups, sessions, depths;
    struct p4_records log, digests;
    uint64_t counts[P4_COUNTS];
    /* what leaves */
    struct p4_output *outputs;
    uint64_t output_count, output_room;
    uint8_t *data;
    uint64_t data_size, data_room;
    /* passes to come, and memory of those gone */
    struct p4_burst *burst_first, *burst_last, *burst_spare;
    struct p4_again *again_first, *again_last;
    void *state, *copy;
};

/* ---- for generated code */

/* The next `bits` of the packet, from a byte's start; the caller has checked that they are there. */
const uint8_t *p4_read_aligned(struct p4_engine *engine, uint64_t bits);

static inline const uint8_t *p4_read(struct p4_engine *engine, uint64_t bits) {
    if (!(engine->cursor & 7)) return engine->in + (engine->cursor >> 3);
    return p4_read_aligned(engine, bits);
}

static inline int p4_reject(struct p4_engine *engine, uint32_t error) {
    engine->error = error;
    return P4_REJECT;
}

/* Room for `bits` more of the packet that is being made. Where the last byte is full, the generated code writes from
   `out + out_bits / 8` on; else into `aligned`, and p4_append brings it in place. */
static inline int p4_room(struct p4_engine *engine, uint64_t bits) {
    if (bits <= engine->out_limit - engine->out_bits) return 1;
    engine->oversize = 1;
    return 0;
}

void p4_append(struct p4_engine *engine, const uint8_t *from, uint64_t bits);

/* push_front on a stack of `size` items; count < 0: pop_front. */
void p4_push(void *items, size_t item_bytes, int64_t size, int64_t count, uint32_t *next_index);

/* Whether the parser has entered one state too many. */
static inline int p4_step(struct p4_engine *engine) {
    return ++engine->steps > engine->program->limits.steps;
}

/* Skip bits of the packet; whether there are fewer. */
static inline int p4_advance(struct p4_engine *engine, uint64_t bits) {
    if (bits > engine->limit - engine->cursor) return 1;
    engine->cursor += bits;
    return 0;
}

/* A turn of a loop: P4_DROP where it was one too many. */
static inline int p4_turn(struct p4_engine *engine) {
    if (++engine->turns <= engine->program->limits.turns) return 0;
    engine->counts[P4_TOO_MANY_TURNS]++;
    return P4_DROP;
}

/* Returns the hash of the bytes. */
uint64_t p4_hash(struct p4_engine *engine, enum p4_hash algorithm, const uint8_t *data, uint64_t size);
/* Returns the hash of them and the packet's payload. */
uint64_t p4_hash_payload(struct p4_engine *engine, enum p4_hash algorithm, const uint8_t *data, uint64_t size);
/* 64 bits. */
uint64_t p4_random(struct p4_engine *engine);
/* low … high, both among them. */
uint64_t p4_random_between(struct p4_engine *engine, uint64_t low, uint64_t high);
void p4_count(struct p4_engine *engine, uint32_t counter, uint64_t index);
uint32_t p4_meter_color(struct p4_engine *engine, uint32_t meter, uint64_t index);
/* The color of a table's direct meter at its last apply in this pass; UINT32_MAX: no table has the meter. */
static inline uint32_t p4_direct_color(const struct p4_engine *engine, uint32_t table) {
    return table != UINT32_MAX && engine->tables[table].met_pass == engine->pass ? engine->tables[table].color : 0;
}

/* Returns NULL without memory. */
uint64_t *p4_record(struct p4_engine *engine, struct p4_records *records, uint32_t id, uint32_t limbs);
/* Note a failed assert or assume: P4_DROP. */
int p4_failed(struct p4_engine *engine, enum p4_count which, uint32_t id);

static inline void p4_request_clone(struct p4_engine *engine, uint64_t session, uint64_t list) {
    engine->requests.clone = 1;
    engine->requests.clone_session = session & 0x7fff;
    engine->requests.clone_list = (uint32_t)list;
}

static inline void p4_request_resubmit(struct p4_engine *engine, uint64_t list) {
    engine->requests.resubmit = 1;
    engine->requests.resubmit_list = (uint32_t)list;
}

static inline void p4_request_recirculate(struct p4_engine *engine, uint64_t list) {
    engine->requests.recirculate = 1;
    engine->requests.recirculate_list = (uint32_t)list;
}

static inline void p4_request_truncate(struct p4_engine *engine, uint64_t bytes) {
    if (bytes < engine->requests.truncate) engine->requests.truncate = (uint32_t)bytes;
}

/* Packets in a port's queue, as the host set it. */
uint32_t p4_depth(const struct p4_engine *engine, uint32_t port);

/* Steps of a pass, as `Move` of architectures/description.py has them. kept: bits of the records that the packet keeps.
   list: a field list that it keeps too, UINT32_MAX: none. */
int p4_parse(struct p4_engine *engine, int (*parser)(struct p4_engine *, void *), const struct p4_packet *packet);
/* Returns P4_DROP where the packet's pass ends with it. */
int p4_deparse(struct p4_engine *engine, int (*deparser)(struct p4_engine *, void *), struct p4_packet *packet);
/* parser: NULL, or parses the bytes as they entered again, given an empty state and the packet's. */
void p4_clone(struct p4_engine *engine, const struct p4_packet *packet, uint32_t path, uint32_t record_bits,
              uint32_t number, uint32_t list, int (*parser)(struct p4_engine *, void *, const void *));
void p4_drop(struct p4_engine *engine);
void p4_resubmit(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t list);
void p4_recirculate(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t list);
void p4_multicast(struct p4_engine *engine, struct p4_packet *packet, uint32_t record_bits, uint32_t number);
void p4_unicast(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t port);
void p4_send(struct p4_engine *engine, const struct p4_packet *packet);

/* ---- inside the runtime */

void p4_records_free(struct p4_records *records);
void p4_pipeline_free(struct p4_engine *engine);
const struct p4_replicas *p4_directory_find(const struct p4_directory *directory, uint32_t id);

/* ---- for native/native_engine.py */

/* Returns NULL without memory. */
P4_EXPORT struct p4_engine *p4_engine_new(const struct p4_program *program);
P4_EXPORT void p4_engine_free(struct p4_engine *engine);
P4_EXPORT void p4_engine_reset(struct p4_engine *engine);

/* `count` packets; packet i is data[offsets[i]] … data[offsets[i + 1] - 1]. firsts[i]: number of its first output;
   firsts[count]: all. The outputs stay until the next call. */
P4_EXPORT void p4_engine_run(struct p4_engine *engine, uint32_t count, const uint16_t *ports, const uint32_t *offsets,
                             const uint8_t *data, uint64_t now_us, uint64_t *firsts);
P4_EXPORT const struct p4_output *p4_engine_outputs(const struct p4_engine *engine);
P4_EXPORT const uint8_t *p4_engine_data(const struct p4_engine *engine);
P4_EXPORT const uint64_t *p4_engine_counts(const struct p4_engine *engine);

/* Returns 0, or -1 without memory. */
P4_EXPORT int p4_engine_set_table(struct p4_engine *engine, int value_set, uint32_t table, uint32_t count,
                                  const uint64_t *values, const uint64_t *masks, const uint64_t *bounds,
                                  const struct p4_entry *entries, const uint64_t *arguments, uint64_t argument_count);
P4_EXPORT int p4_engine_set_default(struct p4_engine *engine, uint32_t table, uint32_t action,
                                    const uint64_t *arguments, uint32_t argument_count);
P4_EXPORT int p4_engine_set_profile(struct p4_engine *engine, uint32_t profile, uint32_t member_count,
                                    const uint32_t *calls, const uint64_t *arguments, uint64_t argument_count,
                                    uint32_t group_count, const uint32_t *firsts, const uint32_t *chosen);
/* which: 0 groups, 1 sessions, 2 queue depths (port -> the first replica's port). count 0: no such entry, unless `group`. */
P4_EXPORT int p4_engine_set_replicas(struct p4_engine *engine, int which, uint32_t id, uint32_t count,
                                     const struct p4_replica *replicas, uint32_t group, uint32_t truncate);
/* First cell of a group of registers; its layout is the program's. */
P4_EXPORT uint8_t *p4_engine_registers(struct p4_engine *engine, uint32_t group);
/* Cells of direct counters and meters: at least `cells` from now on. */
P4_EXPORT int p4_engine_grow_counter(struct p4_engine *engine, uint32_t counter, uint64_t cells);
P4_EXPORT int p4_engine_grow_meter(struct p4_engine *engine, uint32_t meter, uint64_t cells);
/* Cell or NULL. */
P4_EXPORT struct p4_counter *p4_engine_counter(struct p4_engine *engine, uint32_t counter, uint64_t index);
P4_EXPORT void p4_engine_reset_counter(struct p4_engine *engine, uint32_t counter);
/* rates and bursts: committed, then peak; count 0: green from now on. */
P4_EXPORT void p4_engine_set_meter(struct p4_engine *engine, uint32_t meter, uint64_t index, uint32_t count,
                                   const double *rates, const uint64_t *bursts);
P4_EXPORT void p4_engine_set_crc(struct p4_engine *engine, const struct p4_crc *crc);
/* The oldest record, to be read and then taken away; NULL: none. which: 0 log, 1 digests. */
P4_EXPORT const struct p4_record *p4_engine_record(const struct p4_engine *engine, int which);
P4_EXPORT void p4_engine_take_record(struct p4_engine *engine, int which);
