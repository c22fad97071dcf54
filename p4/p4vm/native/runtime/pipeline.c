/* The v1model pipeline around a program's routines. python/pipeline.py numbers the steps. */
#include <stdlib.h>

#include "p4vm.h"

enum { NORMAL = 0, INGRESS_CLONE = 1, EGRESS_CLONE = 2, RECIRCULATED = 4, REPLICATION = 5, RESUBMITTED = 6 };

/* Copies of one state that wait for egress: those of two lists, or the unicast packet. */
struct p4_burst {
    struct p4_burst *next;
    const struct p4_replicas *lists[2];
    uint32_t unicast, port;
    uint32_t passes, truncate, recirculate, recirculate_list;
    const uint8_t *payload;
    uint64_t payload_size;
    _Alignas(16) unsigned char state[];
};

/* A packet that waits for ingress. */
struct p4_again {
    struct p4_again *next;
    uint32_t passes, size;
    uint8_t *bytes;
    _Alignas(16) unsigned char state[];
};

/* ---- fields of standard metadata */

static uint64_t get(const struct p4_engine *engine, const void *state, enum p4_standard which) {
    struct p4_field field = engine->program->standard[which];
    const uint8_t *at = (const uint8_t *)state + field.at;
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    switch (field.bytes) {
        case 1: return *at;
        case 2: memcpy(&two, at, 2); return two;
        case 4: memcpy(&four, at, 4); return four;
        case 8: memcpy(&eight, at, 8); return eight;
        default: return 0;
    }
}

static void set(const struct p4_engine *engine, void *state, enum p4_standard which, uint64_t value) {
    struct p4_field field = engine->program->standard[which];
    uint8_t *at = (uint8_t *)state + field.at;
    uint64_t eight = value & p4_ones(field.width);
    uint32_t four = (uint32_t)eight;
    uint16_t two = (uint16_t)eight;
    switch (field.bytes) {
        case 1: *at = (uint8_t)eight; break;
        case 2: memcpy(at, &two, 2); break;
        case 4: memcpy(at, &four, 4); break;
        case 8: memcpy(at, &eight, 8); break;
        default: break;
    }
}

/* Standard and metadata zero but for a field list's fields, taken from another state, and the type. */
static void begin_anew(struct p4_engine *engine, void *state, const void *from, uint32_t list, uint32_t type) {
    const struct p4_program *program = engine->program;
    memset((uint8_t *)state + program->metadata_at, 0, program->state_size - program->metadata_at);
    program->keep(list, state, from);
    set(engine, state, P4_INSTANCE_TYPE, type);
}

static void forget_wishes(struct p4_engine *engine) {
    engine->wishes = (struct p4_wishes){.truncate = UINT32_MAX};
}

static void drop(struct p4_engine *engine) {
    engine->counts[P4_DROPPED]++;
}

static void drop_bounded(struct p4_engine *engine, uint64_t copies) {
    engine->counts[P4_TOO_MANY_PASSES] += copies;
    engine->counts[P4_DROPPED] += copies;
}

/* Whether a packet of that size may still be caused; if not, it is dropped. */
static int caused(struct p4_engine *engine, uint64_t size) {
    if (engine->caused + size > engine->program->limits.caused_bytes) {
        engine->counts[P4_TOO_MANY_BYTES]++;
        drop(engine);
        return 0;
    }
    engine->caused += size;
    return 1;
}

/* ---- queues */

static struct p4_burst *new_burst(struct p4_engine *engine, const void *state, uint32_t passes) {
    struct p4_burst *burst = engine->burst_spare;
    if (burst)
        engine->burst_spare = burst->next;
    else
        burst = aligned_alloc(16, (sizeof *burst + engine->program->state_size + 15) & ~(size_t)15);
    if (!burst) {
        engine->counts[P4_NO_MEMORY]++;
        drop(engine);
        return NULL;
    }
    memset(burst, 0, sizeof *burst);
    memcpy(burst->state, state, engine->program->state_size);
    burst->passes = passes;
    burst->truncate = UINT32_MAX;
    burst->payload = engine->payload;
    burst->payload_size = engine->payload_size;
    return burst;
}

static void queue_burst(struct p4_engine *engine, struct p4_burst *burst) {
    burst->next = NULL;
    if (engine->burst_last)
        engine->burst_last->next = burst;
    else
        engine->burst_first = burst;
    engine->burst_last = burst;
}

/* Queue a packet for ingress, with a state that has a field list's fields of `from`. */
static void queue_again(struct p4_engine *engine, const uint8_t *bytes, uint64_t size, uint32_t passes, const void *from,
                        uint32_t list, uint32_t type) {
    if (passes > engine->program->limits.passes) {
        drop_bounded(engine, 1);
        return;
    }
    if (!caused(engine, size)) return;
    struct p4_again *again = aligned_alloc(16, (sizeof *again + engine->program->state_size + 15) & ~(size_t)15);
    uint8_t *packet_copy = malloc(size + 1);
    if (!again || !packet_copy) {
        free(again);
        free(packet_copy);
        engine->counts[P4_NO_MEMORY]++;
        drop(engine);
        return;
    }
    if (size) memcpy(packet_copy, bytes, size);
    *again = (struct p4_again){.passes = passes, .size = (uint32_t)size, .bytes = packet_copy};
    memset(again->state, 0, engine->program->state_size);
    begin_anew(engine, again->state, from, list, type);
    set(engine, again->state, P4_PACKET_LENGTH, size);
    if (engine->again_last)
        engine->again_last->next = again;
    else
        engine->again_first = again;
    engine->again_last = again;
}

static const struct p4_replicas *session_of(const struct p4_engine *engine) {
    return engine->wishes.clone ? p4_directory_find(&engine->sessions, engine->wishes.clone_session) : NULL;
}

static const struct p4_replicas *group_of(const struct p4_engine *engine, const struct p4_replicas *session) {
    return session->group ? p4_directory_find(&engine->groups, session->group) : NULL;
}

/* A session's copies of a state join the egress queue; they have the field list's fields of `from`. */
static void queue_clones(struct p4_engine *engine, const struct p4_replicas *session, const void *state,
                         const void *from, uint32_t list, uint32_t type, uint32_t passes) {
    struct p4_burst *burst = new_burst(engine, state, passes);
    if (!burst) return;
    begin_anew(engine, burst->state, from, list, type);
    burst->lists[0] = group_of(engine, session);
    burst->lists[1] = session;
    if (session->truncate) burst->truncate = session->truncate;
    queue_burst(engine, burst);
}

/* ---- egress */

static int make_room(struct p4_engine *engine) {
    uint64_t need = engine->data_size + engine->program->limits.packet_bytes + 16;
    if (need > engine->data_room) {
        uint8_t *more = realloc(engine->data, 2 * need);
        if (!more) return 0;
        engine->data = more;
        engine->data_room = 2 * need;
    }
    if (engine->output_count == engine->output_room) {
        uint64_t room = 2 * engine->output_room + 64;
        struct p4_output *more = realloc(engine->outputs, room * sizeof *more);
        if (!more) return 0;
        engine->outputs = more;
        engine->output_room = room;
    }
    return 1;
}

/* Put the packet together after the data so far. Bytes of the packet, or -1: it is dropped. */
static int64_t deparse(struct p4_engine *engine, void *state) {
    if (!make_room(engine)) {
        engine->counts[P4_NO_MEMORY]++;
        return -1;
    }
    engine->out = engine->data + engine->data_size;
    engine->out_bits = 0;
    engine->out_limit = 8ull * engine->program->limits.packet_bytes;
    engine->oversize = 0;
    if (engine->program->deparser(engine, state) == P4_DROP) return -1;
    uint64_t size = (engine->out_bits + 7) / 8;
    if (engine->oversize || size + engine->payload_size > engine->program->limits.packet_bytes) {
        engine->counts[P4_OVERSIZE]++;
        return -1;
    }
    if (engine->payload_size) memcpy(engine->out + size, engine->payload, engine->payload_size);
    size += engine->payload_size;
    return (int64_t)size;
}

static void clone_after_egress(struct p4_engine *engine, const void *state, uint32_t passes) {
    const struct p4_replicas *session = session_of(engine);
    if (!session) return;
    if (passes + 1 > engine->program->limits.passes) {
        const struct p4_replicas *group = group_of(engine, session);
        drop_bounded(engine, session->count + (group ? group->count : 0));
        return;
    }
    queue_clones(engine, session, state, state, engine->wishes.clone_list, EGRESS_CLONE, passes + 1);
}

/* Passes one copy through egress; `wishes` holds the requests of ingress for it. */
static void run_egress(struct p4_engine *engine, void *state, uint32_t port, uint32_t passes) {
    const struct p4_program *program = engine->program;
    if (++engine->runs > program->limits.runs) {
        drop_bounded(engine, 1);
        return;
    }
    engine->pass++;
    engine->current = state;
    const struct p4_replicas *known = engine->depths.count ? p4_directory_find(&engine->depths, port) : NULL;
    uint32_t depth = known ? known->replica[0].port : 0;
    set(engine, state, P4_EGRESS_PORT, port);
    set(engine, state, P4_EGRESS_SPEC, 0);
    set(engine, state, P4_PACKET_LENGTH, engine->length);
    set(engine, state, P4_ENQ_TIMESTAMP, engine->now);
    set(engine, state, P4_ENQ_QDEPTH, depth);
    set(engine, state, P4_DEQ_TIMEDELTA, 0);
    set(engine, state, P4_DEQ_QDEPTH, depth);
    set(engine, state, P4_EGRESS_GLOBAL_TIMESTAMP, engine->now);
    if (program->egress(engine, state) == P4_DROP) {
        drop(engine);
        return;
    }
    if (engine->wishes.clone) clone_after_egress(engine, state, passes);
    if (get(engine, state, P4_EGRESS_SPEC) == program->limits.drop_port) {
        drop(engine);
        return;
    }
    int64_t size = program->compute(engine, state) == P4_DROP ? -1 : deparse(engine, state);
    if (size < 0) {
        drop(engine);
        return;
    }
    if (engine->wishes.recirculate) {
        queue_again(engine, engine->out, (uint64_t)size, passes + 1, state, engine->wishes.recirculate_list,
                    RECIRCULATED);
        return;
    }
    if (size > engine->wishes.truncate) size = engine->wishes.truncate;
    if (!caused(engine, (uint64_t)size)) return;
    engine->outputs[engine->output_count++] = (struct p4_output){port, (uint32_t)size, engine->data_size};
    engine->data_size += (uint64_t)size;
}

/* Makes the copies of a list, each of a state of its own. */
static void run_list(struct p4_engine *engine, const struct p4_replicas *list, const void *state, uint32_t passes,
                     uint32_t truncate) {
    for (uint32_t i = 0; i < list->count; i++) {
        if (engine->runs >= engine->program->limits.runs) {
            drop_bounded(engine, list->count - i);
            return;
        }
        memcpy(engine->copy, state, engine->program->state_size);
        set(engine, engine->copy, P4_EGRESS_RID, list->replica[i].instance);
        forget_wishes(engine);
        engine->wishes.truncate = truncate;
        run_egress(engine, engine->copy, list->replica[i].port, passes);
    }
}

static void drain(struct p4_engine *engine) {
    while (engine->burst_first) {
        struct p4_burst *burst = engine->burst_first;
        engine->payload = burst->payload;
        engine->payload_size = burst->payload_size;
        if (burst->unicast) {
            forget_wishes(engine);
            engine->wishes.truncate = burst->truncate;
            engine->wishes.recirculate = burst->recirculate;
            engine->wishes.recirculate_list = burst->recirculate_list;
            run_egress(engine, burst->state, burst->port, burst->passes);
        }
        for (int i = 0; i < 2; i++)
            if (burst->lists[i]) run_list(engine, burst->lists[i], burst->state, burst->passes, burst->truncate);
        engine->burst_first = burst->next;
        if (!burst->next) engine->burst_last = NULL;
        burst->next = engine->burst_spare;
        engine->burst_spare = burst;
    }
}

/* ---- ingress */

static int parse(struct p4_engine *engine, const uint8_t *bytes, uint64_t size, void *state) {
    engine->in = bytes;
    engine->cursor = 0;
    engine->limit = 8 * size;
    engine->steps = engine->error = 0;
    int end = engine->program->parser(engine, state);
    uint64_t parsed = (engine->cursor + 7) / 8;
    engine->payload = bytes + parsed;
    engine->payload_size = size - parsed;
    if (end == P4_REJECT) engine->counts[P4_PARSER_REJECTED]++;
    return end;
}

static void clone_after_ingress(struct p4_engine *engine, const uint8_t *bytes, uint64_t size, uint64_t port,
                                const void *state, uint32_t passes) {
    const struct p4_replicas *session = session_of(engine);
    if (!session) return;
    struct p4_wishes wishes = engine->wishes;
    const uint8_t *payload = engine->payload;
    uint64_t payload_size = engine->payload_size;
    memset(engine->copy, 0, engine->program->state_size);
    set(engine, engine->copy, P4_INGRESS_PORT, port);
    if (parse(engine, bytes, size, engine->copy) == P4_DROP)
        drop(engine);
    else
        queue_clones(engine, session, engine->copy, state, wishes.clone_list, INGRESS_CLONE, passes);
    engine->wishes = wishes;
    engine->payload = payload;
    engine->payload_size = payload_size;
}

static void multicast(struct p4_engine *engine, void *state, uint32_t number, uint32_t passes) {
    const struct p4_replicas *group = p4_directory_find(&engine->groups, number);
    if (!group) {
        drop(engine);
        return;
    }
    set(engine, state, P4_INSTANCE_TYPE, REPLICATION);
    if (!engine->burst_first) {
        run_list(engine, group, state, passes, UINT32_MAX);
        return;
    }
    struct p4_burst *burst = new_burst(engine, state, passes);
    if (!burst) return;
    burst->lists[0] = group;
    queue_burst(engine, burst);
}

static void unicast(struct p4_engine *engine, void *state, uint32_t port, uint32_t passes) {
    set(engine, state, P4_INSTANCE_TYPE, NORMAL);
    struct p4_wishes wishes = engine->wishes;
    if (!engine->burst_first) {
        forget_wishes(engine);
        engine->wishes.truncate = wishes.truncate;
        engine->wishes.recirculate = wishes.recirculate;
        engine->wishes.recirculate_list = wishes.recirculate_list;
        run_egress(engine, state, port, passes);
        return;
    }
    struct p4_burst *burst = new_burst(engine, state, passes);
    if (!burst) return;
    burst->unicast = 1;
    burst->port = port;
    burst->truncate = wishes.truncate;
    burst->recirculate = wishes.recirculate;
    burst->recirculate_list = wishes.recirculate_list;
    queue_burst(engine, burst);
}

/* Does one pass through ingress, and all that goes to egress because of it. */
static void run_ingress(struct p4_engine *engine, const uint8_t *bytes, uint64_t size, void *state, uint32_t passes) {
    const struct p4_program *program = engine->program;
    if (++engine->runs > program->limits.runs) {
        drop_bounded(engine, 1);
        return;
    }
    engine->pass++;
    engine->current = state;
    engine->length = (uint32_t)size;
    forget_wishes(engine);
    uint64_t from_port = get(engine, state, P4_INGRESS_PORT);
    int end = parse(engine, bytes, size, state);
    set(engine, state, P4_PARSER_ERROR, end == P4_REJECT ? engine->error : 0);
    if (end != P4_DROP) end = program->verify(engine, state);
    if (engine->wishes.checksum_error) set(engine, state, P4_CHECKSUM_ERROR, 1);
    if (end != P4_DROP) end = program->ingress(engine, state);
    if (end == P4_DROP) {
        drop(engine);
        return;
    }
    if (engine->wishes.clone) clone_after_ingress(engine, bytes, size, from_port, state, passes);
    uint32_t group = (uint32_t)get(engine, state, P4_MCAST_GRP), port = (uint32_t)get(engine, state, P4_EGRESS_SPEC);
    if (engine->wishes.resubmit)
        queue_again(engine, bytes, size, passes + 1, state, engine->wishes.resubmit_list, RESUBMITTED);
    else if (group)
        multicast(engine, state, group, passes);
    else if (port == program->limits.drop_port)
        drop(engine);
    else
        unicast(engine, state, port, passes);
    drain(engine);
}

static void process(struct p4_engine *engine, uint32_t port, const uint8_t *bytes, uint64_t size) {
    engine->counts[P4_RECEIVED]++;
    if (size > engine->program->limits.packet_bytes) {
        engine->counts[P4_OVERSIZE]++;
        drop(engine);
        return;
    }
    engine->turns = engine->runs = 0;
    engine->caused = 0;
    memset(engine->state, 0, engine->program->state_size);
    set(engine, engine->state, P4_INGRESS_PORT, port);
    set(engine, engine->state, P4_PACKET_LENGTH, size);
    set(engine, engine->state, P4_INGRESS_GLOBAL_TIMESTAMP, engine->now);
    run_ingress(engine, bytes, size, engine->state, 0);
    while (engine->again_first) {
        struct p4_again *again = engine->again_first;
        engine->again_first = again->next;
        if (!again->next) engine->again_last = NULL;
        memcpy(engine->state, again->state, engine->program->state_size);
        run_ingress(engine, again->bytes, again->size, engine->state, again->passes);
        free(again->bytes);
        free(again);
    }
}

void p4_engine_run(struct p4_engine *engine, uint32_t count, const uint16_t *ports, const uint32_t *offsets,
                   const uint8_t *data, uint64_t now_us, uint64_t *firsts) {
    engine->output_count = engine->data_size = 0;
    engine->now = now_us;
    for (uint32_t i = 0; i < count; i++) {
        firsts[i] = engine->output_count;
        process(engine, ports[i], data + offsets[i], offsets[i + 1] - offsets[i]);
    }
    firsts[count] = engine->output_count;
    engine->counts[P4_SENT] += engine->output_count;
}

/* ---- the end of an engine */

void p4_pipeline_free(struct p4_engine *engine) {
    while (engine->burst_spare) {
        struct p4_burst *spare = engine->burst_spare;
        engine->burst_spare = spare->next;
        free(spare);
    }
}
