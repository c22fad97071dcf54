/* Fuzz target: any bytes as a script of admissions, evictions and packets near the live state, run on plane.c and on a
   model that shares nothing with it: the model keeps every contribution it took and sums anew, in 64 bits, whenever a
   result is due. Verdicts, results, destinations, registers and counters must agree (P6, S1 to S8, H2 to H5).

   Script: one byte chooses the step, further bytes its details; see the `step_` functions. */
#include "switchagg/native/rule/plane.h"
#include "script.h"

enum { JOBS = 4, SLOTS = 32, ELEMENTS = 24, STREAMS = 3, ROWS = 4, SIZE_MAX_BYTES = 20 + 4 * ELEMENTS + 8 };

/* ---- the script */

static uint32_t word(void) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 8 | byte();
    return value;
}

/* Small ids stand for themselves, others lie all over the table. */
static uint32_t job_id(void) {
    uint32_t value = byte();
    return value < 128 ? value : value * 257;
}

/* ---- the model */

struct contribution {
    bool maximum;
    int64_t values[ELEMENTS];
};

struct model_slot {
    uint32_t held;
    bool seen[64], marked;
    bool asked[64], answered; /* below another switch; once its result is here it is the one contribution */
    bool zero; /* the first packet was header-only: what is taken is combined with zeros */
    uint32_t taken; /* contributions, in the order of their arrival */
    struct contribution contributions[64];
};

struct model_job {
    bool live;
    uint32_t id, generation, workers, elements, streams;
    uint32_t first[STREAMS], window[STREAMS];
    uint32_t ports[64];
    bool leaf;
    uint32_t parent_port, parent_rank;
};

static struct model_job jobs[JOBS];
static struct model_slot slots[SLOTS][2];
static uint64_t counted[SA_OUTCOMES];

static struct model_job *live_job(uint32_t id) {
    for (int i = 0; i < JOBS; i++)
        if (jobs[i].live && jobs[i].id == id) return &jobs[i];
    return NULL;
}

static const struct model_job *owner_of(uint32_t slot) {
    for (int i = 0; i < JOBS; i++)
        for (uint32_t s = 0; jobs[i].live && s < jobs[i].streams; s++)
            if (slot >= jobs[i].first[s] && slot < jobs[i].first[s] + jobs[i].window[s]) return &jobs[i];
    return NULL;
}

static enum sa_outcome model_fault(const uint8_t *datagram, uint32_t size) {
    if (size < 20) return SA_DROP_SHORT;
    if (datagram[0] != 'S' || datagram[1] != 'A') return SA_DROP_MAGIC;
    if (datagram[2] / 16 != 2) return SA_DROP_WIRE_VERSION;
    uint32_t route = datagram[2] / 2 % 4;
    if (route == 3) return SA_DROP_OP;
    if (!route && (datagram[2] % 2 || datagram[3] > 7)) return SA_DROP_FLAGS;
    uint32_t elements = field(datagram, 14, 2);
    if ((!route && elements == 0) || elements > 16000 || size != 20 + 4 * elements) return SA_DROP_LENGTH;
    return SA_ABSORBED;
}

/* Whether a rank gives values for the chunk of this packet. */
static bool model_gives(const uint8_t *datagram, uint32_t rank) {
    uint32_t route = datagram[2] / 2 % 4, owner = datagram[2] % 2 * 32 + datagram[3] / 8;
    return route == 0 || (route == 1 && rank != owner) || (route == 2 && rank == owner);
}

static enum sa_outcome model_unknown_sender(const uint8_t *datagram, uint32_t port, const struct model_job *job) {
    uint32_t stream = datagram[12], rank = datagram[13] % 128, slot = field(datagram, 6, 2);
    bool down = datagram[3] & 1;
    if (down && (!job || !job->leaf || job->parent_port != port)) return SA_DROP_RESULT;
    if (!job) return SA_DROP_JOB;
    if (field(datagram, 8, 4) != job->generation) return SA_DROP_GENERATION;
    if (stream >= job->streams) return SA_DROP_STREAM;
    if (slot < job->first[stream] || slot >= job->first[stream] + job->window[stream]) return SA_DROP_SLOT;
    if (!down && rank >= job->workers) return SA_DROP_RANK;
    if (!down && job->ports[rank] != port) return SA_DROP_PORT;
    if (job->leaf && datagram[2] / 2 % 4) return SA_DROP_ROUTE;
    uint32_t owner = datagram[2] % 2 * 32 + datagram[3] / 8;
    if (datagram[2] / 2 % 4 && (owner >= job->workers || job->workers == 1)) return SA_DROP_OWNER;
    if (field(datagram, 14, 2) != (model_gives(datagram, rank) ? job->elements : 0)) return SA_DROP_ELEMENTS;
    return SA_ABSORBED;
}

/* What a result is: with the values of `elements`, or header-only. */
struct model_results {
    uint8_t valued[SIZE_MAX_BYTES], header_only[20];
    uint32_t size;                        /* of the one with values */
    uint32_t valued_ports[64], header_only_ports[64]; /* to whom, in the order of ranks */
    uint32_t valued_count, header_only_count;
};

static void model_values(const struct model_slot *slot, uint32_t elements, uint8_t *result) {
    for (uint32_t e = 0; e < elements; e++) {
        int64_t sum = slot->zero ? 0 : slot->contributions[0].values[e];
        for (uint32_t i = slot->zero ? 0 : 1; i < slot->taken; i++) {
            int64_t value = slot->contributions[i].values[e];
            if (!slot->contributions[i].maximum) {
                sum += value;
                if (sum > INT32_MAX) sum -= 1ll << 32;
                if (sum < INT32_MIN) sum += 1ll << 32;
            } else if (value > sum) {
                sum = value;
            }
        }
        for (int i = 0; i < 4; i++) result[20 + 4 * e + i] = (uint8_t)((uint64_t)sum >> (24 - 8 * i));
    }
}

/* A child's packet of a chunk that all have given, at a switch below another; changes results for the way up. */
static enum sa_outcome model_up(const struct model_job *job, struct model_slot *slot, uint32_t rank, bool again,
                                struct model_results *results) {
    bool none = true, asked = slot->asked[rank];
    for (uint32_t r = 0; r < 64; r++) none &= !slot->asked[r];
    slot->asked[rank] = true;
    if (again && slot->answered) {
        slot->asked[rank] = asked;
        return SA_REPLY;
    }
    if (again && !none && !asked) return SA_DROP_ASKED;
    memset(slot->asked, 0, sizeof slot->asked);
    slot->asked[rank] = again;
    results->valued_ports[0] = job->parent_port;
    results->valued_count = 1;
    results->valued[3] = (uint8_t)((results->valued[3] & ~5) | (again ? 4 : 0));
    results->valued[13] = (uint8_t)(job->parent_rank + (slot->marked ? 128 : 0));
    return again ? SA_UP_AGAIN : SA_UP;
}

static void model_results(const struct model_job *job, const struct model_slot *slot, const uint8_t *datagram,
                          bool again, struct model_results *results) {
    memset(results, 0, sizeof *results);
    memcpy(results->valued, datagram, 20);
    results->valued[3] = (uint8_t)(1 | (datagram[3] & ~4));
    results->valued[13] = (uint8_t)(datagram[13] % 128 + (slot->marked ? 128 : 0));
    memcpy(results->header_only, results->valued, 20);
    put(results->valued, 14, 2, job->elements);
    put(results->header_only, 14, 2, 0);
    results->size = 20 + 4 * job->elements;
    model_values(slot, job->elements, results->valued);
    for (uint32_t rank = 0; rank < job->workers; rank++) {
        if (again && rank != datagram[13] % 64) continue;
        if (datagram[2] / 2 % 4 && model_gives(datagram, rank))
            results->header_only_ports[results->header_only_count++] = job->ports[rank];
        else
            results->valued_ports[results->valued_count++] = job->ports[rank];
    }
}

static void model_take(const struct model_job *job, struct model_slot *slot, const uint8_t *datagram, bool maximum) {
    struct contribution *taken = &slot->contributions[slot->taken++];
    taken->maximum = maximum;
    for (uint32_t e = 0; e < job->elements; e++) taken->values[e] = (int32_t)field(datagram, 20 + 4 * e, 4);
}

/* The parent's result. */
static enum sa_outcome model_down(const struct model_job *job, struct model_slot *slot, const uint8_t *datagram,
                                  struct model_results *results) {
    if (field(datagram, 16, 4) != slot->held) return SA_DROP_PARENT_CHUNK;
    if (slot->answered) return SA_DROP_PARENT_DUPLICATE;
    for (uint32_t r = 0; r < job->workers; r++)
        if (!slot->seen[r]) return SA_DROP_PARENT_EARLY;
    slot->answered = true;
    slot->marked = datagram[13] >= 128;
    slot->taken = 0;
    slot->zero = false;
    model_take(job, slot, datagram, false);
    model_results(job, slot, datagram, false, results);
    return SA_BROADCAST;
}

/* What must become of a datagram; `results` are written for a BROADCAST or REPLY. */
static enum sa_outcome model_accept(const uint8_t *datagram, uint32_t size, uint32_t port,
                                    struct model_results *results) {
    enum sa_outcome outcome = model_fault(datagram, size);
    if (outcome != SA_ABSORBED) return outcome;
    const struct model_job *job = live_job(field(datagram, 4, 2));
    outcome = model_unknown_sender(datagram, port, job);
    if (outcome != SA_ABSORBED) return outcome;

    struct model_slot *slot = &slots[field(datagram, 6, 2)][datagram[3] / 2 % 2];
    if (datagram[3] & 1) return model_down(job, slot, datagram, results);
    uint32_t chunk = field(datagram, 16, 4), rank = datagram[13] % 64, missing = 0;
    int64_t ahead = ((int64_t)chunk - slot->held + (1ll << 32)) % (1ll << 32);
    if (ahead >= 1ll << 31) return SA_DROP_OLDER;
    if (ahead && ahead != 2 * (int64_t)job->window[datagram[12]]) return SA_DROP_EARLY;
    if (ahead) {
        slot->held = chunk;
        slot->taken = 0;
        slot->answered = slot->marked = false;
        memset(slot->seen, 0, sizeof slot->seen);
    }
    slot->marked |= datagram[13] >= 128;
    bool again = slot->seen[rank], first = true, others_gave = false;
    for (uint32_t r = 0; r < job->workers; r++) {
        first &= !slot->seen[r];
        others_gave |= slot->seen[r] && model_gives(datagram, r);
    }
    if (first) {
        slot->taken = 0;
        slot->zero = true;
    }
    if (!again && model_gives(datagram, rank)) {
        if (!others_gave) {
            slot->taken = 0;
            slot->zero = false;
        }
        model_take(job, slot, datagram, datagram[2] / 8 % 2);
    }
    slot->seen[rank] = true;
    for (uint32_t r = 0; r < job->workers; r++) missing += !slot->seen[r];
    if (missing) return again ? SA_DROP_DUPLICATE : SA_ABSORBED;
    model_results(job, slot, datagram, again, results);
    if (job->leaf) return model_up(job, slot, rank, again, results);
    return again ? SA_REPLY : SA_BROADCAST;
}

/* ---- the plane beside it */

static struct sa_plane *plane;
static uint64_t counters_before[SA_OUTCOMES];

/* Whether these are the ports, in any order; ranks may share one here. */
static bool same_ports(const uint32_t *wanted, uint32_t wanted_count, const uint32_t *ports, uint32_t count) {
    bool same = wanted_count == count;
    for (uint32_t i = 0; i < wanted_count && same; i++) {
        int32_t missing = 0;
        for (uint32_t j = 0; j < count; j++) missing += (wanted[j] == wanted[i]) - (ports[j] == wanted[i]);
        same = missing == 0;
    }
    return same;
}

/* The largest result that any live job has: all of it is room that a caller gives. */
static uint32_t largest_result(void) {
    uint32_t size = 0;
    for (int i = 0; i < JOBS; i++)
        if (jobs[i].live && 20 + 4 * jobs[i].elements > size) size = 20 + 4 * jobs[i].elements;
    return size;
}

/* Rows of one size by sa_plane_accept, each in memory of its own that starts at any alignment. */
static void run_singly(const uint8_t *rows, uint32_t count, uint32_t size, uint32_t port, uint32_t skew) {
    for (uint32_t row = 0; row < count; row++) {
        static const uint32_t no_port;
        static struct model_results expected;
        uint32_t room = largest_result();
        uint8_t *datagram = exactly(skew + size), *out = exactly(skew + room), *header_only = exactly(skew + 20);
        memcpy(datagram + skew, rows + row * size, size);
        memset(out, 0xa5, skew + room);
        memset(header_only, 0xa5, skew + 20);
        enum sa_outcome wanted = model_accept(rows + row * size, size, port, &expected);
        counted[wanted]++;
        struct sa_results results = {{&no_port, 77}, {&no_port, 77}, 77};
        CHECK(sa_plane_accept(plane, datagram + skew, size, port, out + skew, header_only + skew, &results) == wanted);
        CHECK(size == 0 || memcmp(datagram + skew, rows + row * size, size) == 0);
        bool sent = sa_sends(wanted);
        if (sent) {
            CHECK(results.size == expected.size);
            CHECK(same_ports(expected.valued_ports, expected.valued_count, results.valued.ports, results.valued.count));
            CHECK(same_ports(expected.header_only_ports, expected.header_only_count, results.header_only.ports, results.header_only.count));
        } else {
            CHECK(results.valued.ports == &no_port && results.header_only.ports == &no_port && results.size == 77);
        }
        if (!sent || !expected.valued_count) memset(expected.valued, 0xa5, sizeof expected.valued);
        if (!sent || !expected.header_only_count) memset(expected.header_only, 0xa5, sizeof expected.header_only);
        CHECK(room == 0 || memcmp(out + skew, expected.valued, sent && expected.valued_count ? expected.size : room) == 0);
        CHECK(memcmp(header_only + skew, expected.header_only, 20) == 0);
        free(datagram);
        free(out);
        free(header_only);
    }
}

static void run_bundle(const uint8_t *rows, uint32_t count, uint32_t size, uint32_t port, uint32_t skew) {
    uint32_t room = count * largest_result();
    uint8_t *bundle = exactly(skew + count * size), *out = exactly(skew + room), *header_only = exactly(skew + 20 * count);
    struct sa_run *runs = (struct sa_run *)exactly(count * sizeof *runs);
    memcpy(bundle + skew, rows, count * size);
    uint32_t runs_made = sa_plane_process(plane, bundle + skew, count, size, port, out + skew, header_only + skew, runs);
    uint32_t run = 0, in_run = 0;
    const uint8_t *valued_at = out + skew, *header_only_at = header_only + skew;
    for (uint32_t row = 0; row < count; row++) {
        static struct model_results expected;
        enum sa_outcome wanted = model_accept(rows + row * size, size, port, &expected);
        counted[wanted]++;
        if (!sa_sends(wanted)) continue;
        CHECK(runs_made);
        if (in_run == runs[run].count) {
            run++;
            in_run = 0;
        }
        in_run++;
        CHECK(run < runs_made);
        const struct model_job *job = live_job(field(expected.header_only, 4, 2));
        CHECK(runs[run].job_id == job->id && runs[run].size == expected.size);
        uint32_t twice[128];
        for (uint32_t i = 0; i < 2 * job->workers; i++) twice[i] = job->ports[i % job->workers];
        if (job->leaf) twice[job->workers] = job->parent_port;
        struct sa_ranks valued = runs[run].valued, to_header_only = runs[run].header_only;
        CHECK(same_ports(expected.valued_ports, expected.valued_count, twice + valued.first, valued.count));
        CHECK(same_ports(expected.header_only_ports, expected.header_only_count, twice + to_header_only.first, to_header_only.count));
        if (valued.count) {
            CHECK(memcmp(valued_at, expected.valued, expected.size) == 0);
            valued_at += expected.size;
        }
        if (to_header_only.count) {
            CHECK(memcmp(header_only_at, expected.header_only, 20) == 0);
            header_only_at += 20;
        }
    }
    CHECK(runs_made ? run + 1 == runs_made && in_run == runs[run].count : run == 0 && in_run == 0);
    free(bundle);
    free(out);
    free(header_only);
    free(runs);
}

/* ---- steps */

static void step_admit(bool leaf) {
    struct model_job job = {.live = true, .id = job_id(), .generation = word(), .leaf = leaf};
    job.workers = count_of(leaf ? 63 : 64);
    job.elements = count_of(ELEMENTS);
    job.streams = count_of(STREAMS);
    struct sa_stream streams[STREAMS];
    bool fits = true;
    for (uint32_t s = 0; s < job.streams; s++) {
        job.first[s] = byte() % SLOTS;
        job.window[s] = count_of(8);
        streams[s] = (struct sa_stream){job.first[s], job.window[s], 0};
        fits &= job.first[s] + job.window[s] <= SLOTS;
        for (uint32_t other = 0; other < s; other++)
            fits &= job.first[s] + job.window[s] <= job.first[other] || job.first[other] + job.window[other] <= job.first[s];
    }
    uint32_t first_port = byte(), port = byte();
    for (uint32_t rank = 0; rank < job.workers; rank++) job.ports[rank] = rank ? port + rank : first_port;
    if (leaf) {
        job.parent_port = byte();
        job.parent_rank = byte() % 64;
    }
    struct model_job *place = live_job(job.id);
    for (int i = 0; i < JOBS && !place; i++)
        if (!jobs[i].live) place = &jobs[i];
    for (uint32_t s = 0; s < job.streams && fits; s++)
        for (uint32_t slot = job.first[s]; slot < job.first[s] + job.window[s]; slot++)
            fits &= !owner_of(slot) || owner_of(slot)->id == job.id;
    if (!fits || !place) return; /* check_admission would refuse it */

    struct sa_job told = {.job_id = job.id, .generation = job.generation, .workers = job.workers,
                          .elements = job.elements, .stream_count = job.streams, .streams = streams};
    const struct sa_parent parent = {job.parent_port, job.parent_rank};
    CHECK(sa_plane_admit(plane, &told, job.ports, job.workers, leaf ? &parent : NULL) == 0);
    *place = job;
    for (uint32_t s = 0; s < job.streams; s++)
        for (uint32_t i = 0; i < job.window[s]; i++)
            for (uint32_t version = 0; version < 2; version++) { /* S7 */
                struct model_slot *slot = &slots[job.first[s] + i][version];
                slot->held = (uint32_t)((int64_t)i + ((int64_t)version - 2) * (int64_t)job.window[s]);
                slot->taken = 0;
                slot->answered = slot->marked = false;
                memset(slot->seen, 0, sizeof slot->seen);
            }
}

static void step_evict(void) {
    uint32_t id = job_id();
    struct model_job *job = live_job(id);
    sa_plane_evict(plane, id);
    if (job) job->live = false;
}

/* A datagram byte by byte from the script. */
static void step_raw(void) {
    uint8_t datagram[255];
    uint32_t port = byte(), size = byte();
    if (size > SIZE_MAX_BYTES) return;
    for (uint32_t i = 0; i < size; i++) datagram[i] = (uint8_t)byte();
    run_singly(datagram, 1, size, port, size & 3);
}

/* `size` bytes, at least a header; returns how many it should have. */
static uint32_t near_packet(const struct model_job *job, uint8_t *datagram, uint32_t size, uint32_t place,
                            uint32_t stream, uint32_t rank, uint32_t distance, uint32_t seed) {
    uint32_t window = job->window[stream % job->streams], version = place % 2;
    uint32_t slot = job->first[stream % job->streams] + place / 2 % window;
    const uint32_t distances[] = {0, 2 * window, -2 * window, 1, 0x7fffffff, 0x80000000, 0x80000001, 4 * window};
    put(datagram, 0, 2, 0x5341);
    /* most packets carry the chunk that is held, so that slots become complete */
    uint32_t chunk = slots[slot][version].held + distances[distance < 160 ? 0 : distance % 8];
    /* mostly the same for all packets of a chunk */
    bool odd = seed >= 224;
    uint32_t drawn = chunk / (2 * window) + (odd ? seed : 0), route = odd || (job->workers > 1 && !job->leaf) ? drawn % 3 : 0;
    uint32_t owner = route ? drawn / 3 % (odd ? 64 : job->workers) : 0;
    put(datagram, 2, 2, 0x2000 | (seed & 2 ? 0x800 : 0) | route << 9 | owner << 3 | version * 2 | (seed & 4));
    put(datagram, 4, 2, job->id);
    put(datagram, 6, 2, slot);
    put(datagram, 8, 4, job->generation);
    put(datagram, 12, 1, stream % job->streams);
    put(datagram, 13, 1, rank);
    put(datagram, 14, 2, size == 20 ? 0 : job->elements);
    put(datagram, 16, 4, chunk);
    for (uint32_t at = 20; at + 4 <= size; at += 4) put(datagram, at, 4, some_value(seed, at));
    return 20 + (model_gives(datagram, rank) ? 4 * job->elements : 0);
}

/* Workers' packets, as far from what their slot versions hold as the script says, whole or damaged. */
static void step_near(uint32_t flags) {
    uint32_t choice = byte(), place = byte(), rank = byte(), distance = byte(), seed = byte(), damage = byte();
    const struct model_job *job = &jobs[choice % JOBS];
    if (!job->live) return;
    static uint8_t rows[ROWS * SIZE_MAX_BYTES];
    rank = rank < 224 ? rank % job->workers : rank - 224 + job->workers; /* a few beyond the last */
    uint32_t count = 1 + (flags >> 1) % ROWS;
    uint32_t size = near_packet(job, rows, 20, place, choice / JOBS, rank, distance, seed);
    if (damage >= 128 && damage < 160) size = damage & 1 ? size + damage % 8 : size - damage % 8;
    memset(rows, 0, sizeof rows);
    for (uint32_t row = 0; row < count; row++) {
        const struct model_job *from = &jobs[(choice + (flags & 8 ? row : 0)) % JOBS]; /* jobs may share a port */
        near_packet(from->live ? from : job, rows + row * size, size, place + 2 * row, choice / JOBS, rank, distance,
                    seed + 8 * row);
        if (flags & 16 && from->leaf) rows[row * size + 3] |= 1;
        if (flags & 32) rows[row * size + 13] ^= 128;
        if (damage >= 160) rows[row * size + damage % 20] ^= (uint8_t)(1 << seed % 8);
    }
    uint32_t port = job->leaf && flags & 16 ? job->parent_port : job->ports[rank < job->workers ? rank : 0];
    if (flags & 1)
        run_bundle(rows, count, size, port, seed & 3);
    else
        run_singly(rows, count, size, port, seed & 3);
}

/* ---- the end of a script */

static void compare_state(void) {
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t version = 0; version < 2; version++) {
            uint32_t chunk = 0;
            uint64_t ranks = 0, wanted = 0;
            for (uint32_t r = 0; r < 64; r++) wanted |= (uint64_t)slots[slot][version].seen[r] << r;
            int owned = sa_plane_seen(plane, slot, version, &chunk, &ranks) == 0;
            if (owned && slots[slot][version].answered) wanted |= 1ull << owner_of(slot)->workers;
            CHECK(owned == (owner_of(slot) != NULL));
            CHECK(!owned || (chunk == slots[slot][version].held && ranks == wanted));
        }
    for (int i = 0; i < SA_OUTCOMES; i++) CHECK(sa_plane_counters(plane)[i] - counters_before[i] == counted[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!plane) plane = sa_plane_new(); /* kept: every script ends with all jobs evicted */
    CHECK(plane);
    script = data;
    script_left = size;
    memcpy(counters_before, sa_plane_counters(plane), sizeof counters_before);
    memset(counted, 0, sizeof counted);
    while (script_left) {
        uint32_t step = byte();
        if (step < 16)
            step_admit(step >= 8);
        else if (step < 24)
            step_evict();
        else if (step < 40)
            step_raw();
        else
            step_near(step);
    }
    compare_state();
    for (int i = 0; i < JOBS; i++) {
        if (jobs[i].live) sa_plane_evict(plane, jobs[i].id);
        jobs[i].live = false;
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint32_t chunk;
        uint64_t ranks;
        CHECK(sa_plane_seen(plane, slot, 0, &chunk, &ranks) == -1);
    }
    return 0;
}
