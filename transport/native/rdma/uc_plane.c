/* See uc_plane.h. The data plane interprets frames; this file handles packets, keys and addresses. */
#include "transport/native/rdma/uc_plane.h"

#include <stdlib.h>
#include <string.h>

#define JOB_IDS 65536u
#define BROADCAST SA_WORKERS_MAX /* in place of a rank: for all */
#define TOS_ECN 3u
#define ECN_CAPABLE 2u
#define TOS_CNP 192u /* DSCP 48, as NICs send them; not ECN-capable */
#define PARTITION_MASK 0x7fffu /* the highest bit is only "full member" */
#define ARENA_BYTES ((size_t)SA_UC_MESSAGES * SA_ROCE_PACKET_MAX)
#define NOTICES_MAX 64u
#define COPIES_MAX (SA_UC_MESSAGES - NOTICES_MAX) /* each packet may need a UDP message of its own */

/* A worker's queue pair. */
struct member {
    struct sa_uc_peer peer;
    struct sa_roce_path up; /* for packets from up_port */
    struct sa_roce_path down;
    struct sa_cnp_gate gate;
    uint32_t up_psn; /* expected next */
    uint32_t down_psn; /* of the next packet */
    uint16_t up_port;
    bool granted; /* the message in progress has the right key and address */
};

struct uc_job {
    struct uc_job *next;
    struct uc_job *next_waiting; /* among those with results */
    uint32_t job_id;
    uint32_t rkey;
    uint32_t workers;
    uint32_t mtu;
    uint32_t stream_count;
    uint32_t places; /* slot versions in all */
    uint32_t waiting;
    uint16_t results[SA_UC_RESULTS]; /* numbers of frames, in order */
    struct sa_stream streams[SA_STREAMS_MAX];
    uint32_t first_place[SA_STREAMS_MAX];
    struct member members[]; /* workers of them */
};

/* A frame of the data plane that waits to be sent. */
struct result {
    uint32_t place;
    uint8_t rank; /* or BROADCAST */
    uint8_t tos;
};

struct sa_uc_plane {
    struct sa_plane *plane;
    struct sa_address local;
    uint32_t packets;
    uint64_t counters[SA_UC_COUNTERS];
    struct uc_job *first;
    struct uc_job *by_id[JOB_IDS];
    struct uc_job *first_waiting;
    struct result results[SA_UC_RESULTS];
    uint32_t result_count;
    uint32_t copies; /* packets that will carry them */
    uint8_t *frames; /* SA_UC_RESULTS of up to SA_ROCE_MTU_MAX bytes */
    struct member *notices[NOTICES_MAX]; /* members that get a CNP */
    uint32_t notice_count;
    uint8_t *arena; /* packets laid out */
    size_t arena_used;
    uint32_t segments; /* of the present layout */
    struct sa_udp_message messages[SA_UC_MESSAGES];
    struct sa_address to[SA_UC_MESSAGES]; /* copied: a job may be evicted while they wait */
    uint32_t message_count;
};

/* ---- in */

static struct member *member_of(struct sa_uc_plane *rdma, uint32_t queue_pair, struct uc_job **job, uint32_t *rank) {
    *job = rdma->by_id[queue_pair & 0xffffu];
    *rank = queue_pair >> 16 & 0x7fu;
    if (!(queue_pair & 0x800000u) || !*job || *rank >= (*job)->workers) return NULL;
    return &(*job)->members[*rank];
}

static bool same_host(const struct sa_address *a, const struct sa_address *b) {
    return a->family == b->family && !memcmp(a->host, b->host, sizeof a->host);
}

/* NICs spread queue pairs over paths by their source port: any is accepted, and it may change. */
static const struct sa_roce_path *path_up(const struct sa_uc_plane *rdma, struct member *member, uint16_t port) {
    if (member->up_port != port) {
        member->up_port = port;
        sa_roce_path_init(&member->up, rdma->local.family, member->peer.address.host, rdma->local.host, port,
                          rdma->local.port);
    }
    return &member->up;
}

/* Whether a message with this first packet stays within the job's slot versions. */
static bool lies_within(const struct uc_job *job, const struct sa_roce_packet *packet) {
    uint64_t end = (uint64_t)job->places * job->mtu;
    return packet->length && packet->address % job->mtu == 0 && packet->length % job->mtu == 0 &&
           packet->address < end && packet->length <= end - packet->address;
}

/* Index of a frame's slot version among the job's; UINT32_MAX: it isn't the job's. */
static uint32_t place_of(const struct uc_job *job, const uint8_t *frame) {
    struct sa_header header;
    memcpy(&header, frame, sizeof header);
    if (header.stream >= job->stream_count) return UINT32_MAX;
    const struct sa_stream *stream = &job->streams[header.stream];
    uint32_t offset = SA_BE16(header.slot) - stream->first_slot;
    if (offset >= stream->window) return UINT32_MAX;
    return job->first_place[header.stream] + offset + (SA_BE32(header.kind) & SA_VERSION ? stream->window : 0);
}

/* Key and address (R4): SA_UC_COUNTERS if they are right, else what to count. */
static enum sa_uc_counter refused(const struct uc_job *job, struct member *member,
                                    const struct sa_roce_packet *packet) {
    if (packet->shape & SA_ROCE_STARTS) {
        member->granted = false;
        if (packet->rkey != job->rkey) return SA_UC_DROP_KEY;
        if (!lies_within(job, packet)) return SA_UC_DROP_ADDRESS;
        if (packet->shape & SA_ROCE_ENDS && packet->length != packet->payload_bytes) return SA_UC_DROP_ADDRESS;
        if (packet->payload_bytes == job->mtu && place_of(job, packet->payload) != packet->address / job->mtu)
            return SA_UC_DROP_ADDRESS;
        member->granted = true;
    }
    return member->granted ? SA_UC_COUNTERS : SA_UC_DROP_KEY;
}

/* A frame whose results would partly be header-only, which fill no MTU (R1, R4). */
static bool has_route(const uint8_t *frame, uint32_t size) {
    struct sa_header header;
    memcpy(&header, frame, sizeof header);
    uint32_t kind = SA_BE32(header.kind);
    return sa_route(kind) != SA_ROUTE_ALL && sa_fault(kind, SA_BE16(header.elements), size) == SA_ABSORBED;
}

static void note_congestion(struct sa_uc_plane *rdma, struct member *member, int64_t now_ns) {
    rdma->counters[SA_UC_ECN_MARKED]++;
    if (rdma->notice_count < NOTICES_MAX && sa_cnp_due(&member->gate, SA_CNP_INTERVAL_NS, now_ns))
        rdma->notices[rdma->notice_count++] = member;
}

static void keep(struct sa_uc_plane *rdma, struct uc_job *job, uint32_t rank, uint32_t tos) {
    uint32_t number = rdma->result_count++;
    const uint8_t *frame = rdma->frames + (size_t)number * SA_ROCE_MTU_MAX;
    uint32_t ecn = tos & TOS_ECN ? ECN_CAPABLE : 0; /* a mark is in the frame by now (R8) */
    rdma->results[number] = (struct result){place_of(job, frame), (uint8_t)rank, (uint8_t)((tos & ~TOS_ECN) | ecn)};
    if (!job->waiting) {
        job->next_waiting = rdma->first_waiting;
        rdma->first_waiting = job;
    }
    job->results[job->waiting++] = (uint16_t)number;
    rdma->copies += rank == BROADCAST ? job->workers : 1;
}

/* The counter of a datagram; SA_UC_COUNTERS if the data plane has counted it. */
static enum sa_uc_counter take(struct sa_uc_plane *rdma, uint8_t *datagram, uint32_t size,
                                 const struct sa_address *sender, uint32_t tos, uint32_t position, int64_t now_ns) {
    struct sa_roce_packet packet;
    enum sa_roce_fault fault = sa_roce_parse(datagram, size, &packet);
    if (fault != SA_ROCE_GOOD) return SA_UC_DROP_ROCE_SHORT + (fault - SA_ROCE_SHORT);
    struct uc_job *job;
    uint32_t rank;
    struct member *member = member_of(rdma, packet.queue_pair, &job, &rank);
    if (!member) return SA_UC_DROP_QUEUE_PAIR;
    if (!same_host(sender, &member->peer.address)) return SA_UC_DROP_UNKNOWN_SENDER;
    if (!sa_roce_check(path_up(rdma, member, sender->port), datagram, size, (uint16_t)position,
                       member->peer.any_identification ? SA_IDENT_ANY : SA_IDENT_SMALL, NULL))
        return SA_UC_DROP_ICRC;
    if (packet.opcode == SA_ROCE_CNP) return SA_UC_CNP_RECEIVED;
    if ((packet.opcode & SA_ROCE_TRANSPORT) != SA_ROCE_UC || !(packet.shape & SA_ROCE_WRITES))
        return SA_UC_DROP_OPERATION;
    if ((packet.partition & PARTITION_MASK) != PARTITION_MASK) return SA_UC_DROP_PARTITION;
    if (sa_is_ce(tos)) note_congestion(rdma, member, now_ns);
    if (packet.psn != member->up_psn) rdma->counters[SA_UC_PSN_GAPS]++;
    member->up_psn = sa_psn_add(packet.psn, 1);
    enum sa_uc_counter counter = refused(job, member, &packet);
    if (counter != SA_UC_COUNTERS) return counter;
    if (packet.payload_bytes != job->mtu) return SA_UC_DROP_ROCE_LENGTH;

    if (has_route(packet.payload, packet.payload_bytes)) return SA_UC_DROP_ROUTE;
    if (sa_is_ce(tos)) sa_mark_contribution(datagram + (packet.payload - datagram), packet.payload_bytes, tos);

    struct sa_results results;
    uint8_t header_only[SA_HEADER_BYTES];
    uint8_t *out = rdma->frames + (size_t)rdma->result_count * SA_ROCE_MTU_MAX;
    enum sa_outcome outcome =
        sa_plane_accept(rdma->plane, packet.payload, packet.payload_bytes, packet.queue_pair, out, header_only, &results);
    if (outcome == SA_BROADCAST) keep(rdma, job, BROADCAST, tos);
    if (outcome == SA_REPLY) keep(rdma, job, rank, tos);
    return SA_UC_COUNTERS;
}

bool sa_uc_plane_take(struct sa_uc_plane *rdma, uint8_t *datagram, uint32_t size,
                        const struct sa_address *sender, uint32_t tos, uint32_t position, int64_t now_ns) {
    enum sa_uc_counter counter = take(rdma, datagram, size, sender, tos, position, now_ns);
    if (counter != SA_UC_COUNTERS) rdma->counters[counter]++;
    return rdma->result_count < SA_UC_RESULTS && rdma->copies + SA_WORKERS_MAX <= COPIES_MAX;
}

/* ---- out */

/* Room for one more datagram, in the message at the end if it may join that one: *position is its place there. There is
   room, as `take` has counted the copies. */
static uint8_t *room_for(struct sa_uc_plane *rdma, const struct member *member, uint32_t size, uint32_t tos,
                         uint32_t *position) {
    struct sa_udp_message *last = rdma->message_count ? &rdma->messages[rdma->message_count - 1] : NULL;
    uint32_t most = SA_DATAGRAM_MAX / size < rdma->segments ? SA_DATAGRAM_MAX / size : rdma->segments;
    uint8_t *at = rdma->arena + rdma->arena_used;
    if (last && last->size == size && (uint32_t)last->tos == tos && last->rows < most &&
        !memcmp(last->to, &member->peer.address, sizeof *last->to)) {
        *position = last->rows++;
    } else {
        *position = 0;
        rdma->to[rdma->message_count] = member->peer.address;
        rdma->messages[rdma->message_count] = (struct sa_udp_message){
            .bytes = at, .rows = 1, .size = size, .to = &rdma->to[rdma->message_count], .tos = (int32_t)tos};
        rdma->message_count++;
    }
    rdma->arena_used += size;
    return at;
}

static void lay_out_packet(struct sa_uc_plane *rdma, struct member *member, struct sa_roce_packet *packet,
                           uint32_t tos) {
    uint8_t headers[SA_ROCE_HEADERS_MAX];
    packet->partition = SA_ROCE_PARTITION;
    packet->queue_pair = member->peer.queue_pair;
    uint32_t headers_bytes = sa_roce_build(packet, headers), position;
    uint32_t size = headers_bytes + packet->payload_bytes + SA_ROCE_ICRC_BYTES;
    uint8_t *at = room_for(rdma, member, size, tos, &position);
    memcpy(at, headers, headers_bytes);
    if (packet->payload_bytes) memcpy(at + headers_bytes, packet->payload, packet->payload_bytes);
    sa_roce_seal(&member->down, (uint16_t)position, at, size);
    rdma->counters[SA_UC_PACKETS_SENT]++;
}

/* A message of `count` frames at consecutive places (R6). */
static void lay_out_message(struct sa_uc_plane *rdma, const struct uc_job *job, struct member *member,
                            const uint16_t *numbers, uint32_t count) {
    const struct result *first = &rdma->results[numbers[0]];
    for (uint32_t i = 0; i < count; i++) {
        bool last = i + 1 == count;
        uint32_t operation = count == 1 ? SA_ROCE_WRITE_ONLY_IMMEDIATE
                             : i == 0   ? SA_ROCE_WRITE_FIRST
                             : last     ? SA_ROCE_WRITE_LAST_IMMEDIATE
                                        : SA_ROCE_WRITE_MIDDLE;
        struct sa_roce_packet packet = {
            .opcode = (uint8_t)(SA_ROCE_UC | operation),
            .psn = member->down_psn,
            .rkey = member->peer.rkey,
            .address = member->peer.base + (uint64_t)first->place * job->mtu,
            .length = count * job->mtu,
            .immediate = first->place,
            .payload = rdma->frames + (size_t)numbers[i] * SA_ROCE_MTU_MAX,
            .payload_bytes = job->mtu,
        };
        member->down_psn = sa_psn_add(member->down_psn, 1);
        lay_out_packet(rdma, member, &packet, first->tos);
    }
    rdma->counters[SA_UC_MESSAGES_SENT]++;
}

static void lay_out_member(struct sa_uc_plane *rdma, const struct uc_job *job, struct member *member,
                           uint32_t rank) {
    uint16_t run[SA_UC_PACKETS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->waiting; i++) {
        const struct result *result = &rdma->results[job->results[i]];
        if (result->rank != BROADCAST && result->rank != rank) continue;
        const struct result *last = count ? &rdma->results[run[count - 1]] : NULL;
        if (last && (count == rdma->packets || result->place != last->place + 1 || result->tos != last->tos)) {
            lay_out_message(rdma, job, member, run, count);
            count = 0;
        }
        run[count++] = job->results[i];
    }
    if (count) lay_out_message(rdma, job, member, run, count);
}

uint32_t sa_uc_plane_lay_out(struct sa_uc_plane *rdma, uint32_t segments, struct sa_udp_message **messages) {
    rdma->segments = segments;
    rdma->arena_used = rdma->message_count = 0;
    for (uint32_t i = 0; i < rdma->notice_count; i++) {
        struct sa_roce_packet packet = {.opcode = SA_ROCE_CNP, .becn = true};
        lay_out_packet(rdma, rdma->notices[i], &packet, TOS_CNP);
        rdma->counters[SA_UC_CNP_SENT]++;
    }
    for (struct uc_job *job = rdma->first_waiting; job; job = job->next_waiting) {
        for (uint32_t rank = 0; rank < job->workers; rank++) lay_out_member(rdma, job, &job->members[rank], rank);
        job->waiting = 0;
    }
    rdma->first_waiting = NULL;
    rdma->notice_count = rdma->result_count = rdma->copies = 0;
    *messages = rdma->messages;
    return rdma->message_count;
}

/* ---- jobs */

struct sa_uc_plane *sa_uc_plane_new(struct sa_plane *plane, const struct sa_address *local, uint32_t packets) {
    struct sa_uc_plane *rdma = calloc(1, sizeof *rdma);
    if (!rdma) return NULL;
    rdma->plane = plane;
    rdma->local = *local;
    rdma->packets = packets < 1 ? 1 : packets > SA_UC_PACKETS_MAX ? SA_UC_PACKETS_MAX : packets;
    rdma->frames = malloc((size_t)SA_UC_RESULTS * SA_ROCE_MTU_MAX);
    rdma->arena = malloc(ARENA_BYTES);
    if (!rdma->frames || !rdma->arena) {
        sa_uc_plane_free(rdma);
        return NULL;
    }
    return rdma;
}

void sa_uc_plane_free(struct sa_uc_plane *rdma) {
    if (!rdma) return;
    while (rdma->first) sa_uc_plane_evict(rdma, rdma->first->job_id);
    free(rdma->frames);
    free(rdma->arena);
    free(rdma);
}

void sa_uc_plane_evict(struct sa_uc_plane *rdma, uint32_t job_id) {
    struct uc_job *job = job_id < JOB_IDS ? rdma->by_id[job_id] : NULL;
    if (!job) return;
    struct uc_job **link = &rdma->first;
    while (*link != job) link = &(*link)->next;
    *link = job->next;
    if (job->waiting) {
        for (link = &rdma->first_waiting; *link != job;) link = &(*link)->next_waiting;
        *link = job->next_waiting;
    }
    uint32_t remaining = 0;
    for (uint32_t i = 0; i < rdma->notice_count; i++) {
        struct member *member = rdma->notices[i];
        if (member < job->members || member >= job->members + job->workers) rdma->notices[remaining++] = member;
    }
    rdma->notice_count = remaining;
    rdma->by_id[job_id] = NULL;
    free(job);
}

int sa_uc_plane_admit(struct sa_uc_plane *rdma, const struct sa_job *config, const struct sa_uc_peer *peers) {
    struct uc_job *job = calloc(1, sizeof *job + config->workers * sizeof *job->members);
    if (!job) return -1;
    job->job_id = config->job_id;
    job->rkey = config->generation;
    job->workers = config->workers;
    job->mtu = SA_HEADER_BYTES + 4 * config->elements;
    job->stream_count = config->stream_count;
    memcpy(job->streams, config->streams, config->stream_count * sizeof *config->streams);
    for (uint32_t s = 0; s < config->stream_count; s++) {
        job->first_place[s] = job->places;
        job->places += 2 * config->streams[s].window;
    }
    for (uint32_t rank = 0; rank < config->workers; rank++) {
        struct member *member = &job->members[rank];
        member->peer = peers[rank];
        member->up_psn = peers[rank].psn;
        path_up(rdma, member, peers[rank].address.port);
        sa_roce_path_init(&member->down, rdma->local.family, rdma->local.host, peers[rank].address.host, rdma->local.port,
                          peers[rank].address.port);
    }
    sa_uc_plane_evict(rdma, job->job_id); /* its earlier generation */
    job->next = rdma->first;
    rdma->first = job;
    rdma->by_id[job->job_id] = job;
    return 0;
}

void sa_uc_plane_lost(struct sa_uc_plane *rdma, uint32_t packets) {
    rdma->counters[SA_UC_DROP_QUEUE_FULL] += packets;
}

const uint64_t *sa_uc_plane_counters(const struct sa_uc_plane *rdma) { return rdma->counters; }
