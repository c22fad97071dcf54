/* Two queue pairs on a wire that loses, repeats and reorders packets as the script says, and forges some.

   Checked: RC delivers every message once, in order and whole, and completes all work requests, or ends in ERR with all of
   them completed; UC delivers whole messages, in order, none twice; completions come in the order of their requests;
   nothing outside the regions that a peer may write is ever written (AddressSanitizer, and a region that must stay as it
   is), also when packets are forged; on a wire that has become perfect everything ends. */
#include "transport/native/roce/qp.h"

#include "script.h"

#define MESSAGE_MAX 2100u
#define SLOTS 64u
#define DEPTH 16u
#define IN_FLIGHT 96u
#define SECRET 1024u
#define NS_PER_MS 1000000

struct message {
    uint32_t number;
    uint32_t opcode;
    uint32_t size;
    bool delivered;
};

/* One end. Messages of direction d go from ends[d] to ends[1 - d]. */
struct end {
    struct sa_memory memory;
    struct sa_cq cq;
    struct sa_qp qp;
    uint8_t *sources, *receives, *targets, *secret;
    uint32_t source_key, receive_key, target_key, secret_key;
    struct message messages[SLOTS]; /* by number mod SLOTS */
    uint32_t posted, completed;          /* sends */
    uint32_t receives_posted, receives_completed;
    uint32_t heard;                      /* of the other end's messages: the next that may arrive */
};

struct flying {
    uint8_t *bytes;
    uint32_t size;
    uint32_t to;
    bool marked;
};

static struct end ends[2];
static struct flying wire[IN_FLIGHT];
static uint32_t in_flight;
static int64_t now_ns;
static uint32_t mtu;
static bool reliable, forged;

static uint8_t content(uint32_t direction, uint32_t number, uint32_t at) {
    return (uint8_t)(number * 31 + at * 7 + (at >> 8) * 13 + direction * 101 + 1);
}

static bool is_whole(const uint8_t *bytes, uint32_t direction, const struct message *message) {
    for (uint32_t i = 0; i < message->size; i++)
        if (bytes[i] != content(direction, message->number, i)) return false;
    return true;
}

/* ---- the world */

static void begin_end(uint32_t index, const struct sa_qp_attributes *attributes) {
    struct end *end = &ends[index];
    memset(end, 0, sizeof *end);
    sa_memory_init(&end->memory);
    CHECK(!sa_cq_new(&end->cq, 4 * DEPTH));
    end->sources = exactly(SLOTS * MESSAGE_MAX);
    end->receives = exactly(SLOTS * MESSAGE_MAX);
    end->targets = exactly(SLOTS * MESSAGE_MAX);
    end->secret = exactly(SECRET);
    memset(end->secret, 0x5e, SECRET);
    uint32_t both = SA_ACCESS_LOCAL_WRITE | SA_ACCESS_REMOTE_WRITE;
    end->source_key = sa_memory_register(&end->memory, 1, end->sources, SLOTS * MESSAGE_MAX, 0);
    end->receive_key =
        sa_memory_register(&end->memory, 1, end->receives, SLOTS * MESSAGE_MAX, SA_ACCESS_LOCAL_WRITE);
    end->target_key = sa_memory_register(&end->memory, 1, end->targets, SLOTS * MESSAGE_MAX, both);
    end->secret_key = sa_memory_register(&end->memory, 1, end->secret, SECRET, SA_ACCESS_LOCAL_WRITE);
    CHECK(end->secret_key);
    CHECK(!sa_qp_init(&end->qp, 0x11 + index, reliable ? SA_ROCE_RC : SA_ROCE_UC, 1, &end->memory, &end->cq, &end->cq,
                      DEPTH, DEPTH, true));
    struct sa_qp_attributes own = *attributes;
    own.peer = 0x11 + (1 - index);
    if (index) {
        own.send_psn = attributes->receive_psn;
        own.receive_psn = attributes->send_psn;
    }
    CHECK(!sa_qp_modify(&end->qp, SA_QPS_INIT, &own, now_ns));
    CHECK(!sa_qp_modify(&end->qp, SA_QPS_RTR, &own, now_ns));
    CHECK(!sa_qp_modify(&end->qp, SA_QPS_RTS, &own, now_ns));
}

static void begin(void) {
    static const uint32_t starts[] = {0, 0xfffffe, 0x7fffff, 0x123456};
    uint32_t shape = byte(), window = count_of(40);
    reliable = shape & 1;
    forged = false;
    in_flight = 0;
    now_ns = 1000;
    mtu = shape & 2 ? 256 : 512;
    struct sa_qp_attributes attributes = {
        .access = SA_ACCESS_REMOTE_WRITE,
        .path_mtu = mtu,
        .send_psn = starts[shape >> 2 & 3],
        .receive_psn = starts[shape >> 4 & 3],
        .min_rnr_timer = 1,
        .timeout = 8,
        .retry_count = 7,
        .rnr_retry = 7,
        .window_packets = window,
        .line_bps = shape & 64 ? 1000000000 : 0,
    };
    begin_end(0, &attributes);
    begin_end(1, &attributes);
}

static void finish(void) {
    for (uint32_t i = 0; i < in_flight; i++) free(wire[i].bytes);
    for (uint32_t i = 0; i < 2; i++) {
        struct end *end = &ends[i];
        for (uint32_t at = 0; at < SECRET; at++) CHECK(end->secret[at] == 0x5e);
        sa_qp_free(&end->qp);
        CHECK(end->cq.claimed == 0 && end->cq.users == 0);
        CHECK(!sa_memory_forget(&end->memory, end->source_key)); /* nothing uses it any more */
        CHECK(!sa_memory_forget(&end->memory, end->receive_key));
        sa_cq_free(&end->cq);
        sa_memory_clear(&end->memory);
        free(end->sources);
        free(end->receives);
        free(end->targets);
        free(end->secret);
    }
}

/* ---- completions */

static void receive_completed(uint32_t index, const struct sa_completion *done) {
    struct end *end = &ends[index], *other = &ends[1 - index];
    CHECK(done->id == end->receives_completed++);
    if (done->status != SA_WC_SUCCESS) {
        CHECK(end->qp.state == SA_QPS_ERR);
        return;
    }
    if (forged) return;
    const uint8_t *received = end->receives + done->id % SLOTS * MESSAGE_MAX;
    bool written = done->opcode == SA_WC_RECEIVE_WRITE_WITH_IMMEDIATE;
    for (;; end->heard++) { /* UC: some were lost */
        CHECK(end->heard < other->posted);
        struct message *message = &other->messages[end->heard % SLOTS];
        if (message->opcode == SA_WR_WRITE) continue; /* says nothing here */
        bool fits = message->size == done->bytes && (message->opcode == SA_WR_WRITE_WITH_IMMEDIATE) == written &&
                    (message->opcode & 1) == (done->flags & SA_WC_WITH_IMMEDIATE ? 1 : 0) &&
                    (!(message->opcode & 1) || done->immediate == message->number);
        const uint8_t *place = written ? end->targets + message->number % SLOTS * MESSAGE_MAX : received;
        fits = fits && is_whole(place, 1 - index, message);
        CHECK(fits || !reliable);
        if (!fits) continue;
        message->delivered = true;
        end->heard++;
        return;
    }
}

static void send_completed(uint32_t index, const struct sa_completion *done) {
    struct end *end = &ends[index];
    const struct message *message = &end->messages[end->completed % SLOTS];
    CHECK(done->id == end->completed++);
    if (done->status != SA_WC_SUCCESS) {
        CHECK(end->qp.state == SA_QPS_ERR);
        return;
    }
    CHECK(done->bytes == message->size);
    if (forged || !reliable) return;
    if (message->opcode <= SA_WR_WRITE_WITH_IMMEDIATE)
        CHECK(is_whole(ends[1 - index].targets + message->number % SLOTS * MESSAGE_MAX, index, message));
    if (message->opcode != SA_WR_WRITE) CHECK(message->delivered);
}

static void poll_all(void) {
    struct sa_completion done[8];
    for (uint32_t receives = 1; receives < 2; receives--) /* receivers first: senders' checks ask what was delivered */
        for (uint32_t index = 0; index < 2; index++)
            if (receives) {
                struct sa_cq *cq = &ends[index].cq;
                for (uint32_t i = 0; i < cq->count; i++) {
                    const struct sa_completion *one = &cq->ring[(cq->first + i) % cq->capacity];
                    if (one->opcode >= SA_WC_RECEIVE) receive_completed(index, one);
                }
            } else {
                for (uint32_t found; (found = sa_cq_poll(&ends[index].cq, done, 8));)
                    for (uint32_t i = 0; i < found; i++)
                        if (done[i].opcode < SA_WC_RECEIVE) send_completed(index, &done[i]);
            }
}

/* ---- steps */

static void post_send(uint32_t index) {
    struct end *end = &ends[index], *other = &ends[1 - index];
    uint32_t choice = byte(), size = byte() * 8 + choice % 8;
    if (end->posted - end->completed == DEPTH || end->qp.send_tail - end->qp.send_head == DEPTH) return;
    struct message *message = &end->messages[end->posted % SLOTS];
    *message = (struct message){.number = end->posted, .opcode = choice >> 3 & 3, .size = size};
    uint8_t *source = end->sources + end->posted % SLOTS * MESSAGE_MAX;
    for (uint32_t i = 0; i < size; i++) source[i] = content(index, message->number, i);
    struct sa_send_request request = {
        .id = end->posted,
        .address = (uintptr_t)source,
        .remote_address = (uintptr_t)(other->targets + end->posted % SLOTS * MESSAGE_MAX),
        .length = size,
        .lkey = end->source_key,
        .rkey = other->target_key,
        .immediate = message->number,
        .opcode = message->opcode,
        .flags = choice & 64 ? SA_SEND_SOLICITED : 0,
    };
    CHECK(!sa_qp_post_send(&end->qp, &request));
    end->posted++;
}

static void post_receive(uint32_t index) {
    struct end *end = &ends[index];
    struct sa_receive_request request = {
        .id = end->receives_posted,
        .address = (uintptr_t)(end->receives + end->receives_posted % SLOTS * MESSAGE_MAX),
        .length = MESSAGE_MAX,
        .lkey = end->receive_key,
    };
    if (end->receives_posted - end->receives_completed == DEPTH) return;
    CHECK(!sa_qp_post_receive(&end->qp, &request));
    end->receives_posted++;
}

static void fly(uint32_t from, const struct sa_qp_packet *packet) {
    uint32_t size = sa_qp_packet_bytes(packet);
    uint8_t *bytes = exactly(size);
    memset(bytes, 0, size);
    memcpy(bytes, packet->headers, packet->headers_bytes);
    if (packet->payload_bytes) memcpy(bytes + packet->headers_bytes, packet->payload, packet->payload_bytes);
    wire[in_flight++] = (struct flying){bytes, size, 1 - from, false};
}

/* Let some packets out: answers first. Whether any left. */
static bool emit(uint32_t index, uint32_t most) {
    struct sa_qp *qp = &ends[index].qp;
    struct sa_qp_packet packets[8];
    bool any = false;
    while (in_flight < IN_FLIGHT && sa_qp_answer(qp, &packets[0])) {
        fly(index, &packets[0]);
        any = true;
    }
    if (most > 8) most = 8;
    if (most > IN_FLIGHT - in_flight) most = IN_FLIGHT - in_flight;
    uint32_t count = most ? sa_qp_peek(qp, now_ns, most, 3000, packets) : 0, bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        CHECK(packets[i].payload_bytes <= mtu);
        CHECK(sa_qp_packet_bytes(&packets[i]) <= sa_qp_packet_bytes(&packets[0]));
        CHECK(i + 1 >= count || sa_qp_packet_bytes(&packets[i]) == sa_qp_packet_bytes(&packets[0]));
        bytes += sa_qp_packet_bytes(&packets[i]);
        fly(index, &packets[i]);
    }
    CHECK(count <= 1 || bytes <= 3000);
    if (count) sa_qp_sent(qp, count, bytes, now_ns);
    return any || count;
}

static void deliver(const uint8_t *bytes, uint32_t size, uint32_t to, bool marked) {
    struct sa_roce_packet packet;
    if (sa_roce_parse(bytes, size, &packet) != SA_ROCE_GOOD) {
        CHECK(forged);
        return;
    }
    sa_qp_receive(&ends[to].qp, &packet, marked, now_ns);
    poll_all();
}

static void take_off_wire(uint32_t place) {
    free(wire[place].bytes);
    memmove(&wire[place], &wire[place + 1], (--in_flight - place) * sizeof *wire);
}

/* Some bytes of a copy of a packet are changed. */
static void forge(uint32_t place) {
    uint32_t changes = count_of(4), size = wire[place].size;
    uint8_t *bytes = exactly(size);
    memcpy(bytes, wire[place].bytes, size);
    forged = true;
    for (uint32_t i = 0; i < changes; i++) {
        uint32_t at = byte() % (size < 36 ? size : 36), value = byte();
        bytes[at] = i & 1 ? (uint8_t)value : (uint8_t)(bytes[at] + value);
    }
    deliver(bytes, size, wire[place].to, false);
    free(bytes);
}

/* A write that is none of the peer's business, with the PSN that is awaited. */
static void attack(uint32_t to) {
    struct end *end = &ends[to];
    uint32_t choice = byte(), size = 4 + byte() % 64 * 4;
    uint8_t *bytes = exactly(SA_ROCE_PACKET_MAX);
    memset(bytes, 0xee, SA_ROCE_PACKET_MAX);
    struct sa_roce_packet packet = {
        .opcode = (uint8_t)((reliable ? SA_ROCE_RC : SA_ROCE_UC) | SA_ROCE_WRITE_ONLY),
        .partition = SA_ROCE_PARTITION,
        .psn = end->qp.expected,
        .rkey = choice & 1 ? end->target_key : choice & 2 ? end->secret_key : choice & 4 ? end->receive_key : byte() << 8,
        .address = (uintptr_t)(choice & 8 ? end->secret : end->targets) + (choice & 16 ? SLOTS * MESSAGE_MAX - 1 : 0) -
                   (choice & 32 ? 1 : 0),
        .length = size,
    };
    if ((choice & 1) && !(choice & (8 | 16 | 32))) packet.rkey ^= 0x100; /* or it would be allowed */
    forged = true;
    uint32_t headers = sa_roce_build(&packet, bytes);
    deliver(bytes, headers + size + SA_ROCE_ICRC_BYTES, to, false);
    free(bytes);
    for (uint32_t at = 0; at < SECRET; at++) CHECK(end->secret[at] == 0x5e);
}

static void pass(int64_t span_ns) {
    now_ns += span_ns;
    for (uint32_t i = 0; i < 2; i++)
        if (sa_qp_deadline_ns(&ends[i].qp, now_ns) <= now_ns) sa_qp_tick(&ends[i].qp, now_ns);
    poll_all();
}

static void step(uint32_t what) {
    uint32_t index = what & 1, place = in_flight ? (what >> 4) % in_flight : 0;
    switch (what >> 1 & 7) {
    case 0: post_send(index); break;
    case 1: post_receive(index); break;
    case 2: emit(index, 1 + (what >> 4)); break;
    case 3:
    case 4: /* in order, mostly */
        if (!in_flight) break;
        if (what & 0x80) place = 0;
        deliver(wire[place].bytes, wire[place].size, wire[place].to, what & 0x10);
        take_off_wire(place);
        break;
    case 5: /* a second copy */
        if (in_flight) deliver(wire[place].bytes, wire[place].size, wire[place].to, false);
        break;
    case 6: /* lost, or forged */
        if (!in_flight) break;
        if (what == 0xfd)
            forge(byte() % in_flight);
        else if (what == 0xfc)
            attack(byte() & 1);
        else
            take_off_wire(place);
        break;
    default: pass((int64_t)(what >> 4) * NS_PER_MS / 4); break;
    }
    poll_all();
}

/* From now on nothing is lost, and receives are posted: everything ends. */
static void drain(void) {
    for (uint32_t idle = 0, turns = 0; idle < 3; turns++) {
        CHECK(turns < 100000);
        bool any = in_flight > 0;
        while (in_flight) {
            deliver(wire[0].bytes, wire[0].size, wire[0].to, false);
            take_off_wire(0);
        }
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t r = 0; r < DEPTH; r++) post_receive(i);
            any |= emit(i, 8);
        }
        poll_all();
        idle = any ? 0 : idle + 1;
        if (any) continue;
        int64_t next = SA_QP_NEVER;
        for (uint32_t i = 0; i < 2; i++) {
            int64_t own = sa_qp_deadline_ns(&ends[i].qp, now_ns);
            if (own < next) next = own;
        }
        if (next == SA_QP_NEVER) continue;
        idle = 0;
        pass(next > now_ns ? next - now_ns : 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const struct end *end = &ends[i], *other = &ends[1 - i];
        CHECK(end->qp.state != SA_QPS_ERR || end->receives_completed == end->receives_posted);
        CHECK(end->completed == end->posted || (forged && end->qp.state != SA_QPS_ERR));
        if (forged) continue;
        bool failed = end->qp.state == SA_QPS_ERR || other->qp.state == SA_QPS_ERR;
        CHECK(reliable || !failed);
        for (uint32_t n = end->posted > SLOTS ? end->posted - SLOTS : 0; reliable && !failed && n < end->posted; n++)
            CHECK(end->messages[n % SLOTS].delivered || end->messages[n % SLOTS].opcode == SA_WR_WRITE);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    script = data;
    script_left = size;
    begin();
    while (script_left) step(byte());
    drain();
    finish();
    return 0;
}
