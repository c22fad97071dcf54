/* Fuzz target: any bytes as a script for a whole small world on endpoint.c: up to three workers, the real plane between
   them, a network that loses, repeats and reorders, and a forger. Frames must be well formed and keep W2 and W6, deadlines
   lie ahead, events come once, arrays are written only while their call runs and never beyond their end; without forged
   results integer sums are exact and floats the same bits for all (F7), and a network that heals ends every call. With verified sums
   (V1) these hold with forged results, too, but for maxima. */
#include "switchagg/native/rule/mask.h"
#include "switchagg/native/worker/endpoint.h"
#include "switchagg/native/rule/plane.h"
#include "script.h"

void sa_endpoint_start_at(struct sa_endpoint *endpoint, uint32_t stream, uint64_t chunk);

enum { WORKERS = 3, STREAMS = 2, CALLS = 12, VALUES = 60, POOL = 96, CHUNKS = 4096, FRAME_BYTES = 20 + 4 * 17, BURST = 8 };

static struct sa_stream streams[STREAMS];
static struct sa_job job;
static struct sa_plane *plane;
static const uint8_t key[SA_KEY_BYTES + SA_MASK_KEY_BYTES] = "workers know it";
static int64_t now_ns;
static bool forged, failed; /* somebody lied to a worker; a stream gave up */
static uint64_t start[STREAMS];

struct call {
    uint32_t stream, op, count;
    enum sa_dtype dtype;
    uint32_t bytes;
    uint32_t route, owner; /* who has the result of what (W13) */
    bool routed;
    bool small; /* floats that sum exactly, in lanes up to `slack` */
    double slack;
    const char *codec;
    bool described;
    bool fed_back;
    uint8_t *arrays[WORKERS], *before[WORKERS], *after[WORKERS], *lost[WORKERS]; /* after: as of the last look, or of its end */
    bool submitted[WORKERS], done[WORKERS], held[WORKERS][VALUES + 1];
};

struct worker {
    struct sa_endpoint *endpoint;
    uint32_t submitted; /* calls, in the order of their definition */
    bool stream_failed[STREAMS];
    bool sent[STREAMS][CHUNKS], answered[STREAMS][CHUNKS]; /* chunks since `start` */
};

struct datagram {
    bool under_way, to_switch;
    uint32_t rank, size; /* from or to whom */
    uint8_t bytes[FRAME_BYTES + 4];
};

static struct worker workers[WORKERS];
static struct call calls[CALLS];
static uint32_t call_count;
static struct datagram pool[POOL];

/* ---- the world's beginning and end */

static void begin(void) {
    static const uint32_t sizes[] = {1, 3, 4, 8, 17}, windows[] = {1, 2, 4, 3};
    memset(workers, 0, sizeof workers);
    memset(pool, 0, sizeof pool);
    call_count = 0;
    forged = failed = false;
    now_ns = 0;
    job = (struct sa_job){.job_id = 7, .generation = 0xfffffffe, .streams = streams};
    job.workers = count_of(WORKERS);
    job.elements = sizes[byte() % 5];
    job.stream_count = count_of(STREAMS);
    uint32_t limits = byte();
    job.retry_limit = 1 + limits % 32;
    job.congestion = limits >> 5 & 3;
    job.verify = limits >> 7 && job.elements >= 8 ? SA_VERIFY_ON : SA_VERIFY_OFF;
    job.secret = job.verify == SA_VERIFY_ON && limits & 1 ? SA_SECRET_ON : SA_SECRET_OFF;
    job.rto_initial_ns = 1000;
    job.rto_min_ns = 1 + byte();
    job.rto_max_ns = 1000 + 100 * byte();
    uint32_t first_slot = byte() % 4;
    for (uint32_t s = 0; s < job.stream_count; s++) {
        uint32_t choice = byte(), window = windows[choice % 4];
        streams[s] = (struct sa_stream){first_slot, window, choice & 4 ? 0 : (int32_t)s};
        first_slot += window + choice % 2;
        /* A fresh switch holds the two turns before chunk 0 (S7), so a stream may begin with them: just before 2^32. */
        start[s] = choice & 8 && window != 3 ? (1ull << 32) - (choice & 16 ? 2 : 1) * window : 0;
    }
    uint32_t ports[WORKERS] = {4, 5, 6};
    if (!plane) plane = sa_plane_new();
    CHECK(plane && sa_plane_admit(plane, &job, ports, job.workers, NULL) == 0);
    for (uint32_t rank = 0; rank < job.workers; rank++) {
        workers[rank].endpoint = sa_endpoint_new(&job, rank, rank, key);
        CHECK(workers[rank].endpoint && sa_endpoint_frame_bytes(workers[rank].endpoint) == 20 + 4 * job.elements);
        for (uint32_t s = 0; s < job.stream_count; s++) sa_endpoint_start_at(workers[rank].endpoint, s, start[s]);
    }
}

/* Of a call that runs: a row that holds its result goes on doing so, and an array is written only when a row begins to. */
static void check_held(uint32_t rank, uint32_t index) {
    struct call *call = &calls[index];
    if (!call->submitted[rank] || call->done[rank]) return;
    uint8_t *held = exactly(call->count + 1); /* no fewer than there are rows */
    int missing = sa_endpoint_held(workers[rank].endpoint, index, held, call->count + 1);
    CHECK(!missing || !call->count || (call->route && job.workers == 1)); /* these have no chunks */
    bool more = false;
    for (uint32_t row = 0; row <= call->count && !missing; row++) {
        CHECK(held[row] >= call->held[rank][row] && held[row] <= 1);
        more |= held[row] > call->held[rank][row];
        call->held[rank][row] = held[row];
    }
    if (!more) CHECK(memcmp(call->arrays[rank], call->after[rank], call->bytes) == 0);
    memcpy(call->after[rank], call->arrays[rank], call->bytes);
    free(held);
}

/* An array is its owner's before it is submitted and after its call is done. */
static void end(void) {
    for (uint32_t rank = 0; rank < job.workers; rank++) {
        for (uint32_t index = 0; index < call_count; index++) check_held(rank, index);
        sa_endpoint_free(workers[rank].endpoint);
    }
    for (struct call *call = calls; call < calls + call_count; call++)
        for (uint32_t rank = 0; rank < job.workers; rank++) {
            if (!call->submitted[rank]) CHECK(memcmp(call->arrays[rank], call->before[rank], call->bytes) == 0);
            if (call->done[rank]) CHECK(memcmp(call->arrays[rank], call->after[rank], call->bytes) == 0);
            free(call->arrays[rank]);
            free(call->before[rank]);
            free(call->after[rank]);
            free(call->lost[rank]);
        }
    sa_plane_evict(plane, job.job_id);
}

/* ---- results */

static void set_value(const struct call *call, uint8_t *array, uint32_t index, uint32_t seed) {
    uint32_t low = some_value(seed, index), high = some_value(seed + 2, index);
    uint64_t wide = (uint64_t)high << 32 | low;
    float single = (float)((int32_t)low % 1000);
    double twice = (double)((int32_t)low % 1000);
    switch (call->dtype) {
    case SA_FLOAT32: memcpy(array + 4 * index, call->small ? (void *)&single : (void *)&low, 4); return;
    case SA_FLOAT64: memcpy(array + 8 * index, call->small ? (void *)&twice : (void *)&wide, 8); return;
    case SA_INT32: memcpy(array + 4 * index, &low, 4); return;
    case SA_INT64: memcpy(array + 8 * index, &wide, 8); return;
    case SA_UINT8: array[index] = (uint8_t)low; return;
    }
}

/* Who owns value `index` of a call that has owners. */
static uint32_t owner_of(const struct call *call, uint32_t index) {
    if (call->owner != SA_EACH_RANK) return call->owner;
    uint32_t owner = 0;
    while (index >= (owner + 1) * call->count / job.workers) owner++;
    return owner;
}

/* Check value `index` of a finished call against the contributions. */
static void check_value(const struct call *call, const uint8_t *array, uint32_t index) {
    uint64_t sum = 0, result = 0;
    double real_sum = 0;
    int32_t greatest = INT32_MIN;
    for (uint32_t rank = 0; rank < job.workers; rank++) {
        const uint8_t *from = call->before[rank];
        int32_t number;
        int64_t wide;
        float single;
        double twice;
        switch (call->dtype) {
        case SA_FLOAT32: memcpy(&single, from + 4 * index, 4), real_sum += (double)single; break;
        case SA_FLOAT64: memcpy(&twice, from + 8 * index, 8), real_sum += twice; break;
        case SA_INT32: memcpy(&number, from + 4 * index, 4), sum += (uint64_t)number; break;
        case SA_INT64: memcpy(&wide, from + 8 * index, 8), sum += (uint64_t)wide; break;
        case SA_UINT8: break;
        }
        if (call->dtype == SA_INT32 && number > greatest) greatest = number;
    }
    float single = 0;
    double twice = 0;
    uint32_t narrow = 0;
    switch (call->dtype) {
    case SA_FLOAT32: memcpy(&single, array + 4 * index, 4); CHECK(!call->small || __builtin_fabs((double)single - real_sum) <= call->slack); break;
    case SA_FLOAT64: memcpy(&twice, array + 8 * index, 8); CHECK(!call->small || twice == real_sum); break;
    case SA_INT32:
        memcpy(&narrow, array + 4 * index, 4);
        CHECK(narrow == (call->op == SA_OP_MAX ? (uint32_t)greatest : (uint32_t)sum));
        break;
    case SA_INT64: memcpy(&result, array + 8 * index, 8); CHECK(result == sum); break;
    case SA_UINT8: CHECK(array[index] == call->before[owner_of(call, index)][index]); break;
    }
}

static void call_done(uint32_t rank, const struct sa_event *event) {
    CHECK(event->call < call_count);
    struct call *call = &calls[event->call];
    CHECK(call->stream == event->stream && call->submitted[rank] && !call->done[rank]);
    call->done[rank] = true;
    memcpy(call->after[rank], call->arrays[rank], call->bytes);
    if (forged && (job.verify != SA_VERIFY_ON || call->op == SA_OP_MAX)) return;
    if (call->route == SA_ROUTE_TO_OWNER && job.workers == 1) return; /* it has what is its own, as it was */
    for (uint32_t i = 0; i < call->count; i++)
        if (call->route != SA_ROUTE_TO_OWNER || owner_of(call, i) == rank) check_value(call, call->arrays[rank], i);
    for (uint32_t other = 0; call->route != SA_ROUTE_TO_OWNER && other < job.workers; other++)
        CHECK(!call->done[other] || memcmp(call->after[other], call->after[rank], call->bytes) == 0);
}

static void take_events(uint32_t rank) {
    struct sa_event event;
    while (sa_endpoint_next_event(workers[rank].endpoint, &event) != SA_NO_EVENT) {
        CHECK(event.stream < job.stream_count);
        if (event.kind == SA_CALL_COMPLETED) {
            call_done(rank, &event);
            continue;
        }
        CHECK(!workers[rank].stream_failed[event.stream]);
        if (event.kind == SA_CALLS_DIFFER) /* in truth they never do */
            CHECK(forged && event.rank < job.workers && memcmp(event.remote_words, event.local_words, sizeof event.local_words));
        else if (event.kind == SA_WRONG_SUM || event.kind == SA_WRONG_SUM_TOO_EARLY)
            CHECK(forged && job.verify == SA_VERIFY_ON);
        else
            CHECK(event.kind == SA_STREAM_FAILED && event.timeouts == job.retry_limit + 1);
        workers[rank].stream_failed[event.stream] = failed = true;
    }
}

/* ---- steps */

static void step_define(void) {
    if (call_count == CALLS) return;
    struct call *call = &calls[call_count];
    memset(call, 0, sizeof *call);
    uint32_t choice = byte(), seed = byte();
    call->stream = choice % job.stream_count;
    call->dtype = (enum sa_dtype)(choice >> 2 & 3);
    if (choice & 128) call->route = 1 + seed % 2, call->owner = seed & 2 ? SA_EACH_RANK : seed % job.workers;
    call->routed = seed % 8 != 7;
    if (call->route == SA_ROUTE_FROM_OWNER) call->dtype = SA_UINT8;
    uint32_t bytes = sa_value_bytes(call->dtype);
    if (bytes == 8 && job.elements < 3) return; /* array_call would refuse it */
    call->op = call->dtype == SA_INT32 && choice & 16 ? SA_OP_MAX : SA_OP_SUM;
    call->small = choice & 32;
    call->codec = call->dtype == SA_UINT8 ? "raw" : call->dtype == SA_INT32 || call->dtype == SA_INT64 ? "plain" : "fixed_point";
    if (call->dtype == SA_INT32 && call->op == SA_OP_SUM && job.verify == SA_VERIFY_ON) call->codec = "split";
    if (call->dtype == SA_FLOAT32 && choice & 16) { /* F9: in steps of the largest of a row, below 1000, over h */
        static const uint32_t widths[] = {16, 10, 8, 6, 5, 4};
        static const char *const lanes[] = {"lanes16", "lanes10", "lanes8", "lanes6", "lanes5", "lanes4"};
        call->codec = lanes[seed % 6];
        call->slack = job.workers * 1010.0 / (((1u << widths[seed % 6]) - 1) / job.workers / 2);
        call->fed_back = call->route == SA_ROUTE_ALL && seed & 64;
    }
    call->described = choice & 64;
    call->count = byte() % (VALUES + 1);
    call->bytes = call->count * bytes;
    for (uint32_t rank = 0; rank < job.workers; rank++) {
        call->arrays[rank] = exactly(call->bytes);
        call->before[rank] = exactly(call->bytes);
        call->after[rank] = exactly(call->bytes);
        call->lost[rank] = exactly(call->bytes);
        for (uint32_t i = 0; i < call->count; i++) set_value(call, call->before[rank], i, seed + 16 * rank);
        memcpy(call->arrays[rank], call->before[rank], call->bytes);
        memcpy(call->after[rank], call->before[rank], call->bytes);
    }
    call_count++;
}

static void submit(uint32_t rank) {
    struct worker *worker = &workers[rank];
    if (worker->submitted == call_count) return;
    uint32_t index = worker->submitted++;
    struct call *call = &calls[index];
    if (worker->stream_failed[call->stream]) return;
    call->submitted[rank] = true;
    uint32_t codec = (uint32_t)sa_codec_number(call->codec);
    struct sa_submission submission = {
        .call = index, .key = index << 8 | rank, .data = call->arrays[rank], .residual = call->fed_back ? (float *)call->lost[rank] : NULL, .count = call->count, .stream = call->stream, .codec = codec,
        .dtype = call->dtype, .op = call->op, .route = call->route, .owner = call->owner, .unit = 1, .routed = call->routed, .description = {call->described, index, call->count, 1u << 31}};
    CHECK(sa_endpoint_submit(worker->endpoint, &submission) == 0);
}

static struct datagram *free_place(void) {
    for (struct datagram *datagram = pool; datagram < pool + POOL; datagram++)
        if (!datagram->under_way) return datagram;
    return NULL;
}

static void under_way(const uint8_t *bytes, uint32_t size, bool to_switch, uint32_t rank) {
    struct datagram *datagram = free_place();
    if (!datagram) return; /* a full queue loses */
    *datagram = (struct datagram){.under_way = true, .to_switch = to_switch, .rank = rank, .size = size};
    memcpy(datagram->bytes, bytes, size);
}

/* The unwrapped number of a chunk since the stream's start; CHUNKS if it can't be one. */
static uint32_t since_start(uint32_t stream, uint32_t chunk) {
    uint32_t number = chunk - (uint32_t)start[stream];
    return number < CHUNKS ? number : CHUNKS;
}

static void check_frame(uint32_t rank, const uint8_t *frame, uint32_t size) {
    struct worker *worker = &workers[rank];
    uint32_t stream = frame[12], number;
    uint32_t gives = sa_givers(field(frame, 0, 4), (1u << job.workers) - 1) >> rank & 1;
    CHECK(sa_fault(field(frame, 0, 4), field(frame, 14, 2), size) == SA_ABSORBED);
    CHECK(!(frame[3] & SA_RESULT) && field(frame, 4, 2) == job.job_id && field(frame, 8, 4) == job.generation);
    CHECK((frame[13] & ~SA_MARKED) == rank && field(frame, 14, 2) == (gives ? job.elements : 0));
    CHECK(stream < job.stream_count && !worker->stream_failed[stream]);
    number = since_start(stream, field(frame, 16, 4));
    CHECK(number < CHUNKS);
    uint64_t chunk = start[stream] + number;
    uint32_t window = streams[stream].window;
    CHECK(field(frame, 6, 2) == streams[stream].first_slot + chunk % window); /* W2 */
    CHECK(!(frame[3] & SA_VERSION) == !(chunk / window % 2));
    CHECK(!(frame[3] & SA_RETRANSMISSION) == !worker->sent[stream][number]);
    CHECK(number < window || worker->answered[stream][number - window]); /* W6 */
    CHECK(!worker->answered[stream][number] || forged);
    worker->sent[stream][number] = true;
}

static void send_frames(uint32_t rank, uint32_t limit) {
    uint32_t size = 20 + 4 * job.elements;
    uint8_t *frames = exactly((size_t)limit * size);
    uint32_t count = sa_endpoint_frames_to_send(workers[rank].endpoint, now_ns, limit, frames, &size);
    CHECK(count <= limit);
    for (uint32_t i = 0; i < count; i++) {
        check_frame(rank, frames + i * size, size);
        under_way(frames + i * size, size, true, rank);
    }
    free(frames);
}

static void receive(uint32_t rank, const uint8_t *bundle, uint32_t rows, uint32_t size) {
    struct worker *worker = &workers[rank];
    uint8_t *copy = exactly((size_t)rows * size + 1); /* one off: any alignment */
    memcpy(copy + 1, bundle, (size_t)rows * size);
    for (uint32_t row = 0; row < rows && size >= 20; row++) {
        const uint8_t *datagram = bundle + (size_t)row * size;
        uint32_t stream = datagram[12] % STREAMS, number = since_start(stream, field(datagram, 16, 4));
        if (number < CHUNKS) worker->answered[stream][number] = true;
    }
    sa_endpoint_receive(worker->endpoint, copy + 1, rows, size, now_ns, rows & 1);
    CHECK(memcmp(copy + 1, bundle, (size_t)rows * size) == 0);
    free(copy);
    take_events(rank);
    if (call_count) check_held(rank, rows % call_count);
}

static void deliver(struct datagram *datagram) {
    if (datagram->to_switch) {
        uint8_t out[FRAME_BYTES + 4], header_only[20];
        struct sa_results results;
        enum sa_outcome outcome =
            sa_plane_accept(plane, datagram->bytes, datagram->size, 4 + datagram->rank, out, header_only, &results);
        if (outcome != SA_BROADCAST && outcome != SA_REPLY) return;
        for (uint32_t i = 0; i < results.valued.count; i++)
            under_way(out, results.size, false, results.valued.ports[i] - 4);
        for (uint32_t i = 0; i < results.header_only.count; i++) under_way(header_only, 20, false, results.header_only.ports[i] - 4);
        return;
    }
    /* with it, as one bundle, what else waits for the same worker */
    static uint8_t bundle[BURST * (FRAME_BYTES + 4)];
    uint32_t rows = 0, rank = datagram->rank, size = datagram->size;
    for (struct datagram *other = datagram; other < pool + POOL && rows < BURST; other++)
        if (other->under_way && !other->to_switch && other->rank == rank && other->size == size) {
            memcpy(bundle + (size_t)rows++ * size, other->bytes, size);
            if (other != datagram) other->under_way = false;
        }
    receive(rank, bundle, rows, size);
}

static void step_network(uint32_t what) {
    struct datagram *datagram = &pool[byte() % POOL];
    if (!datagram->under_way) return;
    if (what == 1) datagram->bytes[13] |= SA_MARKED;
    if (what < 6) deliver(datagram);
    if (what != 5) datagram->under_way = false; /* 5: a copy stays under way; 6 and 7: lost */
}

/* A result that the switch never sent, or garbage; its values are somebody's choice. */
static void step_forge(void) {
    uint8_t forgery[FRAME_BYTES + 4] = {0};
    uint32_t rank = byte() % job.workers, place = byte(), damage = byte(), seed = byte(), size = 20 + 4 * job.elements;
    if (damage < 32) size -= damage % 24;
    forged = true;
    memcpy(forgery, pool[place % POOL].bytes, sizeof forgery);
    forgery[3] = (forgery[3] & SA_VERSION) | SA_RESULT;
    for (uint32_t i = 0; i < job.elements; i++) put(forgery, 20 + 4 * i, 4, some_value(seed, i));
    if (damage >= 160) forgery[damage % 20] ^= (uint8_t)(1 << seed % 8);
    receive(rank, forgery, 1, size);
}

static void step_timer(uint32_t rank) {
    struct sa_endpoint *endpoint = workers[rank].endpoint;
    sa_endpoint_handle_timer(endpoint, now_ns);
    int64_t deadline_ns = sa_endpoint_next_deadline_ns(endpoint);
    CHECK(deadline_ns == -1 || deadline_ns > now_ns);
    take_events(rank);
}

/* The network becomes perfect: every call that all workers have submitted must end. */
static void heal(void) {
    for (uint32_t rank = 0; rank < job.workers; rank++)
        for (uint32_t i = 0; i < CALLS; i++) submit(rank);
    for (uint32_t round = 0; round < 6000; round++) {
        bool idle = true;
        int64_t next_ns = INT64_MAX;
        for (uint32_t rank = 0; rank < job.workers; rank++) {
            take_events(rank);
            send_frames(rank, BURST);
        }
        for (struct datagram *datagram = pool; datagram < pool + POOL; datagram++)
            if (datagram->under_way) {
                idle = false;
                deliver(datagram);
                datagram->under_way = false;
            }
        for (uint32_t rank = 0; rank < job.workers; rank++) {
            int64_t deadline_ns = sa_endpoint_next_deadline_ns(workers[rank].endpoint);
            if (deadline_ns >= 0 && deadline_ns < next_ns) next_ns = deadline_ns;
        }
        if (failed || (idle && next_ns == INT64_MAX)) break;
        if (!idle) continue;
        if (next_ns > now_ns) now_ns = next_ns;
        for (uint32_t rank = 0; rank < job.workers; rank++) step_timer(rank);
    }
    for (struct call *call = calls; call < calls + call_count && !failed; call++)
        for (uint32_t rank = 0; rank < job.workers; rank++) CHECK(call->done[rank]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    script = data;
    script_left = size;
    begin();
    while (script_left) {
        uint32_t step = byte(), rank = step / 16 % job.workers;
        switch (step % 16) {
        case 0: step_define(); break;
        case 1: submit(rank); break;
        case 2: send_frames(rank, byte() % (BURST + 1)); break;
        case 3: step_timer(rank); break;
        case 4: now_ns += (int64_t)byte() * byte(); break;
        case 13: step_forge(); break;
        case 14:
            for (uint32_t r = 0; r < job.workers; r++) submit(r);
            break;
        case 15:
            for (uint32_t r = 0; r < job.workers; r++) send_frames(r, BURST);
            break;
        default: step_network(step % 16 - 5);
        }
        for (uint32_t r = 0; r < job.workers; r++) take_events(r);
    }
    if (!forged && !failed) heal();
    end();
    return 0;
}
