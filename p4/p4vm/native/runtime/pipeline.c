/* The pipeline around a program's routines, as its architecture describes it. python/python_pipeline.py numbers the
   steps. */
#include <stdlib.h>

#include "p4vm.h"

/* Copies of one state that wait for egress: those of two lists, or the unicast packet. bytes: of the packet, where
   egress parses it; `buffer` is freed with the burst. */
struct p4_burst {
    struct p4_burst *next;
    const struct p4_replicas *lists[2];
    uint32_t unicast, port, path;
    uint32_t passes, truncate, recirculate, recirculate_list;
    const uint8_t *payload, *bytes;
    uint64_t payload_size, size;
    uint8_t *buffer;
    _Alignas(16) unsigned char state[];
};

/* A packet that waits for ingress. */
struct p4_again {
    struct p4_again *next;
    uint32_t passes, size, port, path;
    uint8_t *bytes;
    _Alignas(16) unsigned char state[];
};

static void run_pass(struct p4_engine *engine, int ingress, struct p4_packet *packet);

/* ---- the state */

/* Leave of a state the records `record_bits` and a field list's fields of `from`; the rest is zero. */
static void begin_anew(struct p4_engine *engine, void *state, const void *from, uint32_t record_bits, uint32_t list) {
    const struct p4_program *program = engine->program;
    if (record_bits == p4_ones(program->part_count)) return;
    for (uint32_t i = 0; i < program->part_count; i++)
        if (!(record_bits >> i & 1)) memset((uint8_t *)state + program->parts[i].at, 0, program->parts[i].size);
    program->keep(list, state, from);
}

uint32_t p4_depth(const struct p4_engine *engine, uint32_t port) {
    const struct p4_replicas *known = engine->depths.count ? p4_directory_find(&engine->depths, port) : NULL;
    return known ? known->replica[0].port : 0;
}

static void forget_requests(struct p4_engine *engine) {
    engine->requests = (struct p4_requests){.truncate = UINT32_MAX};
}

void p4_drop(struct p4_engine *engine) {
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
        p4_drop(engine);
        return 0;
    }
    engine->caused += size;
    return 1;
}

/* ---- queues */

static void *without_memory(struct p4_engine *engine) {
    engine->counts[P4_NO_MEMORY]++;
    p4_drop(engine);
    return NULL;
}

static struct p4_burst *new_burst(struct p4_engine *engine, const void *state, uint32_t path, uint32_t passes) {
    struct p4_burst *burst = engine->burst_spare;
    if (burst)
        engine->burst_spare = burst->next;
    else
        burst = aligned_alloc(16, (sizeof *burst + engine->program->state_size + 15) & ~(size_t)15);
    if (!burst) return without_memory(engine);
    memset(burst, 0, sizeof *burst);
    memcpy(burst->state, state, engine->program->state_size);
    burst->path = path;
    burst->passes = passes;
    burst->truncate = UINT32_MAX;
    burst->payload = engine->payload;
    burst->payload_size = engine->payload_size;
    return burst;
}

static void spare(struct p4_engine *engine, struct p4_burst *burst) {
    free(burst->buffer);
    burst->buffer = NULL;
    burst->next = engine->burst_spare;
    engine->burst_spare = burst;
}

/* Give the burst a copy of the bytes that the deparser made, if it has run. Returns 0 without memory: the burst is
   gone. */
static int take_made(struct p4_engine *engine, struct p4_burst *burst, const struct p4_packet *packet) {
    if (packet->deparsed_bytes < 0) return 1;
    burst->buffer = malloc((size_t)packet->deparsed_bytes + 1);
    if (!burst->buffer) {
        without_memory(engine);
        spare(engine, burst);
        return 0;
    }
    if (packet->deparsed_bytes) memcpy(burst->buffer, engine->out, (size_t)packet->deparsed_bytes);
    burst->bytes = burst->buffer;
    burst->size = (uint64_t)packet->deparsed_bytes;
    return 1;
}

static void queue_burst(struct p4_engine *engine, struct p4_burst *burst) {
    burst->next = NULL;
    if (engine->burst_last)
        engine->burst_last->next = burst;
    else
        engine->burst_first = burst;
    engine->burst_last = burst;
}

/* Queue a packet for ingress: these bytes, and what the packet keeps of its state. */
static void queue_again(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits,
                        const uint8_t *bytes, uint64_t size, uint32_t list, uint32_t path) {
    if (packet->passes + 1 > engine->program->limits.passes) {
        drop_bounded(engine, 1);
        return;
    }
    if (!caused(engine, size)) return;
    struct p4_again *again = aligned_alloc(16, (sizeof *again + engine->program->state_size + 15) & ~(size_t)15);
    uint8_t *packet_copy = malloc(size + 1);
    if (!again || !packet_copy) {
        free(again);
        free(packet_copy);
        without_memory(engine);
        return;
    }
    if (size) memcpy(packet_copy, bytes, size);
    *again = (struct p4_again){.passes = packet->passes + 1, .size = (uint32_t)size, .bytes = packet_copy};
    again->port = packet->port;
    again->path = path;
    memcpy(again->state, packet->state, engine->program->state_size);
    begin_anew(engine, again->state, packet->state, record_bits, list);
    if (engine->again_last)
        engine->again_last->next = again;
    else
        engine->again_first = again;
    engine->again_last = again;
}

static const struct p4_replicas *group_of(const struct p4_engine *engine, const struct p4_replicas *session) {
    return session->group ? p4_directory_find(&engine->groups, session->group) : NULL;
}

/* ---- the deparser */

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

int p4_deparse(struct p4_engine *engine, int (*deparser)(struct p4_engine *, void *), struct p4_packet *packet) {
    if (!make_room(engine)) {
        without_memory(engine);
        return P4_DROP;
    }
    engine->out = engine->data + engine->data_size;
    engine->out_bits = 0;
    engine->out_limit = 8ull * engine->program->limits.packet_bytes;
    engine->oversize = 0;
    if (deparser(engine, packet->state) == P4_DROP) {
        p4_drop(engine);
        return P4_DROP;
    }
    uint64_t size = (engine->out_bits + 7) / 8;
    if (engine->oversize || size + engine->payload_size > engine->program->limits.packet_bytes) {
        engine->counts[P4_OVERSIZE]++;
        p4_drop(engine);
        return P4_DROP;
    }
    if (engine->payload_size) memcpy(engine->out + size, engine->payload, engine->payload_size);
    packet->deparsed_bytes = (int64_t)(size + engine->payload_size);
    return 0;
}

/* ---- copies */

/* Makes the copies of a list, each of a state of its own. */
static void run_list(struct p4_engine *engine, const struct p4_replicas *list, const struct p4_packet *first,
                     uint32_t truncate) {
    for (uint32_t i = 0; i < list->count; i++) {
        if (engine->runs >= engine->program->limits.runs) {
            drop_bounded(engine, list->count - i);
            return;
        }
        struct p4_packet copy = *first;
        copy.state = engine->copy;
        copy.port = list->replica[i].port;
        copy.instance = list->replica[i].instance;
        memcpy(engine->copy, first->state, engine->program->state_size);
        forget_requests(engine);
        engine->requests.truncate = truncate;
        run_pass(engine, 0, &copy);
    }
}

/* Runs egress for the unicast packet; `requests` holds the requests of ingress for it. */
static void run_unicast(struct p4_engine *engine, struct p4_packet *packet, struct p4_requests requests) {
    forget_requests(engine);
    engine->requests.truncate = requests.truncate;
    engine->requests.recirculate = requests.recirculate;
    engine->requests.recirculate_list = requests.recirculate_list;
    run_pass(engine, 0, packet);
}

static void drain(struct p4_engine *engine) {
    while (engine->burst_first) {
        struct p4_burst *burst = engine->burst_first;
        struct p4_packet packet = {burst->state, burst->bytes, burst->size, burst->port, 0, burst->path, burst->passes, -1};
        engine->payload = burst->payload;
        engine->payload_size = burst->payload_size;
        if (burst->unicast)
            run_unicast(engine, &packet, (struct p4_requests){.truncate = burst->truncate,
                                                            .recirculate = burst->recirculate,
                                                            .recirculate_list = burst->recirculate_list});
        for (int i = 0; i < 2; i++) {
            engine->payload = burst->payload;
            engine->payload_size = burst->payload_size;
            if (burst->lists[i]) run_list(engine, burst->lists[i], &packet, burst->truncate);
        }
        engine->burst_first = burst->next;
        if (!burst->next) engine->burst_last = NULL;
        spare(engine, burst);
    }
}

/* ---- steps */

/* What the parser has left is the payload. */
static int parsed(struct p4_engine *engine, const struct p4_packet *packet, int end) {
    uint64_t bytes = (engine->cursor + 7) / 8;
    engine->payload = packet->bytes + bytes;
    engine->payload_size = packet->size - bytes;
    if (end == P4_REJECT) engine->counts[P4_PARSER_REJECTED]++;
    return end;
}

static void rewind_to(struct p4_engine *engine, const struct p4_packet *packet) {
    engine->in = packet->bytes;
    engine->cursor = 0;
    engine->limit = 8 * packet->size;
    engine->steps = engine->error = 0;
}

int p4_parse(struct p4_engine *engine, int (*parser)(struct p4_engine *, void *), const struct p4_packet *packet) {
    rewind_to(engine, packet);
    return parsed(engine, packet, parser(engine, packet->state));
}

/* The copies of a session begin with `state`, and what the packet keeps of its own. */
static void queue_clones(struct p4_engine *engine, const struct p4_packet *packet, const struct p4_replicas *session,
                         const void *state, uint32_t path, uint32_t record_bits, uint32_t list) {
    uint32_t after_egress = path == P4_CLONE_E2E;
    struct p4_burst *burst = new_burst(engine, state, path, packet->passes + after_egress);
    if (!burst) return;
    begin_anew(engine, burst->state, packet->state, record_bits, list);
    if (after_egress) {
        if (!take_made(engine, burst, packet)) return;
    } else if (state == packet->state) {
        burst->bytes = packet->bytes;
        burst->size = packet->size;
    }
    burst->lists[0] = group_of(engine, session);
    burst->lists[1] = session;
    if (session->truncate) burst->truncate = session->truncate;
    queue_burst(engine, burst);
}

void p4_clone(struct p4_engine *engine, const struct p4_packet *packet, uint32_t path, uint32_t record_bits,
              uint32_t number, uint32_t list, int (*parser)(struct p4_engine *, void *, const void *)) {
    const struct p4_replicas *session = p4_directory_find(&engine->sessions, number);
    if (!session) return;
    if (path == P4_CLONE_E2E && packet->passes + 1 > engine->program->limits.passes) {
        const struct p4_replicas *group = group_of(engine, session);
        drop_bounded(engine, session->count + (group ? group->count : 0));
        return;
    }
    if (!parser) {
        queue_clones(engine, packet, session, packet->state, path, record_bits, list);
        return;
    }
    struct p4_requests requests = engine->requests;
    const uint8_t *payload = engine->payload;
    uint64_t payload_size = engine->payload_size;
    memset(engine->copy, 0, engine->program->state_size);
    rewind_to(engine, packet);
    if (parsed(engine, packet, parser(engine, engine->copy, packet->state)) == P4_DROP)
        p4_drop(engine);
    else
        queue_clones(engine, packet, session, engine->copy, path, record_bits, list);
    engine->requests = requests;
    engine->payload = payload;
    engine->payload_size = payload_size;
}

void p4_resubmit(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t list) {
    queue_again(engine, packet, record_bits, packet->bytes, packet->size, list, P4_RESUBMIT);
}

void p4_recirculate(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t list) {
    queue_again(engine, packet, record_bits, engine->out, (uint64_t)packet->deparsed_bytes, list, P4_RECIRCULATE);
}

void p4_multicast(struct p4_engine *engine, struct p4_packet *packet, uint32_t record_bits, uint32_t number) {
    const struct p4_replicas *group = p4_directory_find(&engine->groups, number);
    if (!group) {
        p4_drop(engine);
        return;
    }
    if (!engine->burst_first && packet->deparsed_bytes < 0) {
        begin_anew(engine, packet->state, packet->state, record_bits, UINT32_MAX);
        packet->bytes = NULL;
        packet->path = P4_MULTICAST;
        run_list(engine, group, packet, UINT32_MAX);
        return;
    }
    struct p4_burst *burst = new_burst(engine, packet->state, P4_MULTICAST, packet->passes);
    if (!burst || !take_made(engine, burst, packet)) return;
    begin_anew(engine, burst->state, packet->state, record_bits, UINT32_MAX);
    burst->lists[0] = group;
    queue_burst(engine, burst);
}

void p4_unicast(struct p4_engine *engine, const struct p4_packet *packet, uint32_t record_bits, uint32_t port) {
    struct p4_requests requests = engine->requests;
    if (!engine->burst_first && packet->deparsed_bytes < 0) {
        begin_anew(engine, packet->state, packet->state, record_bits, UINT32_MAX);
        struct p4_packet leaving = {packet->state, NULL, 0, port, 0, P4_UNICAST, packet->passes, -1};
        run_unicast(engine, &leaving, requests);
        return;
    }
    struct p4_burst *burst = new_burst(engine, packet->state, P4_UNICAST, packet->passes);
    if (!burst || !take_made(engine, burst, packet)) return;
    begin_anew(engine, burst->state, packet->state, record_bits, UINT32_MAX);
    burst->unicast = 1;
    burst->port = port;
    burst->truncate = requests.truncate;
    burst->recirculate = requests.recirculate;
    burst->recirculate_list = requests.recirculate_list;
    queue_burst(engine, burst);
}

void p4_send(struct p4_engine *engine, const struct p4_packet *packet) {
    int64_t size = packet->deparsed_bytes > engine->requests.truncate ? engine->requests.truncate : packet->deparsed_bytes;
    if (!caused(engine, (uint64_t)size)) return;
    engine->outputs[engine->output_count++] = (struct p4_output){packet->port, (uint32_t)size, engine->data_size};
    engine->data_size += (uint64_t)size;
}

static void run_pass(struct p4_engine *engine, int ingress, struct p4_packet *packet) {
    const struct p4_program *program = engine->program;
    if (++engine->runs > program->limits.runs) {
        drop_bounded(engine, 1);
        return;
    }
    engine->pass++;
    engine->current = packet->state;
    if (packet->bytes) engine->length = (uint32_t)packet->size;
    if (ingress)
        program->ingress(engine, packet);
    else
        program->egress(engine, packet);
}

/* Does one pass through ingress, and all that goes to egress because of it. */
static void run_ingress(struct p4_engine *engine, struct p4_packet packet) {
    forget_requests(engine);
    run_pass(engine, 1, &packet);
    drain(engine);
}

static void process(struct p4_engine *engine, uint32_t port, const uint8_t *bytes, uint64_t size) {
    engine->counts[P4_RECEIVED]++;
    if (size > engine->program->limits.packet_bytes) {
        engine->counts[P4_OVERSIZE]++;
        p4_drop(engine);
        return;
    }
    engine->turns = engine->runs = 0;
    engine->caused = 0;
    memset(engine->state, 0, engine->program->state_size);
    run_ingress(engine, (struct p4_packet){engine->state, bytes, size, port, 0, P4_NORMAL, 0, -1});
    while (engine->again_first) {
        struct p4_again *again = engine->again_first;
        engine->again_first = again->next;
        if (!again->next) engine->again_last = NULL;
        memcpy(engine->state, again->state, engine->program->state_size);
        run_ingress(engine, (struct p4_packet){engine->state, again->bytes, again->size, again->port, 0, again->path,
                                            again->passes, -1});
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
