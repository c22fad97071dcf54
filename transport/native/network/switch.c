/* See switch.h. */
#define _GNU_SOURCE
#include "transport/native/network/switch_hops.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "switchagg/native/abi.h"

/* ---- ports */

static struct port *port_of(const struct sa_switch *sw, uint32_t number) {
    return number < sw->ports_size ? sw->ports[number] : NULL;
}

/* Make room for one more port, of this number, in all arrays that grow with them. Returns 0, or -1 without memory. */
static int reserve_ports(struct sa_switch *sw, uint32_t number) {
    if (number >= sw->ports_size) {
        uint32_t size = number < 32 ? 64 : 2 * number;
        struct port **ports = realloc(sw->ports, size * sizeof(struct port *));
        if (!ports) return -1;
        memset(ports + sw->ports_size, 0, (size - sw->ports_size) * sizeof(struct port *));
        sw->ports = ports;
        sw->ports_size = size;
    }
    return sa_timeline_reserve(&sw->timeline, sw->config.pool_packets + SA_DIRECTIONS * (sw->directory.count + 1));
}

SA_EXPORT int sa_switch_set_port(struct sa_switch *sw, uint32_t number, const struct sa_address *address) {
    struct port *port = calloc(1, sizeof *port);
    if (!port || reserve_ports(sw, number) || sa_directory_add(&sw->directory, address, port)) {
        free(port);
        return -1;
    }
    port->address = *address;
    port->number = number;
    for (uint32_t direction = SA_DIRECTION_UP; direction < SA_DIRECTIONS; direction++) {
        sa_queue_init(&port->lanes[direction].queue, &sw->config.queues[direction]);
        port->lanes[direction].key = sa_impair_key(sw->config.seed, number, direction);
    }
    struct sa_queue_config outbox = sw->config.queues[SA_DIRECTION_DOWN];
    if (sw->rated[SA_DIRECTION_DOWN]) {
        outbox.rate_bps = 0;
        outbox.limit_bytes = sw->config.outbox_bytes;
        outbox.ecn_threshold_bytes = SA_NEVER_MARK;
    }
    sa_queue_init(&port->outbox, &outbox);
    sw->ports[number] = port;
    return 0;
}

static void leave_ring(struct sa_switch *sw, struct port *port) {
    struct port **link = &sw->first_waiting, *before = NULL;
    while (*link != port) {
        before = *link;
        link = &before->next_waiting;
    }
    *link = port->next_waiting;
    if (sw->last_waiting == port) sw->last_waiting = before;
}

SA_EXPORT void sa_switch_clear_port(struct sa_switch *sw, uint32_t number) {
    struct port *port = port_of(sw, number);
    if (!port) return;
    if (port->waiting) leave_ring(sw, port);
    sa_timeline_forget(&sw->timeline, number, sw->pool);
    sa_queue_clear(&port->lanes[SA_DIRECTION_UP].queue, sw->pool);
    sa_queue_clear(&port->lanes[SA_DIRECTION_DOWN].queue, sw->pool);
    sa_queue_clear(&port->outbox, sw->pool);
    sa_directory_remove(&sw->directory, &port->address);
    sw->ports[number] = NULL;
    free(port);
}

SA_EXPORT void sa_switch_multicast(struct sa_switch *sw, uint32_t job_id, bool on) {
    sw->multicast[job_id % SA_JOBS] = on;
}

/* ---- outboxes: what waits for room in the kernel, or to be sent together */

static void join_ring(struct sa_switch *sw, struct port *port, bool first) {
    port->waiting = true;
    port->next_waiting = first ? sw->first_waiting : NULL;
    if (!sw->first_waiting)
        sw->first_waiting = sw->last_waiting = port;
    else if (first)
        sw->first_waiting = port;
    else
        sw->last_waiting = sw->last_waiting->next_waiting = port;
}

/* Give the packet to the queue, or drop and count it. */
static bool enqueue(struct sa_switch *sw, struct sa_queue *queue, struct sa_packet *packet, int64_t time_ns,
                    enum sa_switch_counter dropped, enum sa_switch_counter marked) {
    switch (sa_queue_enqueue(queue, packet, time_ns)) {
    case SA_QUEUED_MARKED: sw->counters[marked]++; return true;
    case SA_QUEUED: return true;
    case SA_QUEUE_FULL: break;
    }
    sw->counters[dropped]++;
    sa_pool_give(sw->pool, packet);
    return false;
}

static void put_in_outbox(struct sa_switch *sw, struct port *port, struct sa_packet *packet) {
    if (!enqueue(sw, &port->outbox, packet, sw->now_ns, SA_SWITCH_DROP_QUEUE_FULL, SA_SWITCH_ECN_MARKED)) return;
    if (!port->waiting) join_ring(sw, port, false);
}

/* Take packets of one size and TOS out of a port's outbox, as message `index`. */
static void gather_message(struct sa_switch *sw, struct port *port, uint32_t index) {
    struct sa_packet **packets = sw->packets[index], *packet = sa_queue_depart(&port->outbox, sw->now_ns);
    uint32_t size = packet->buffer->size, rows = 0;
    uint8_t tos = packet->tos;
    while (packet) {
        if (packet->buffer->size != size || packet->tos != tos || rows == sw->config.segments_max) {
            sa_queue_put_back(&port->outbox, packet);
            break;
        }
        packets[rows] = packet;
        sw->gathered[index][rows++] = packet->buffer->bytes;
        packet = sa_queue_depart(&port->outbox, sw->now_ns);
    }
    sw->addressees[index] = port;
    sw->messages[index] = (struct sa_udp_message){.frames = sw->gathered[index],
                                                  .rows = rows,
                                                  .size = size,
                                                  .to = &port->address,
                                                  .tos = tos ? tos : SA_TOS_OF_SOCKET};
}

/* Put back what the kernel did not take; from the last message on, since a port may have two. */
static void settle_messages(struct sa_switch *sw, uint32_t count) {
    for (uint32_t index = count; index-- > 0;) {
        const struct sa_udp_message *message = &sw->messages[index];
        struct port *port = sw->addressees[index];
        for (uint32_t row = message->rows; row-- > message->accepted;) {
            sa_queue_put_back(&port->outbox, sw->packets[index][row]);
            sw->full = true;
        }
        for (uint32_t row = 0; row < message->accepted; row++) sa_pool_give(sw->pool, sw->packets[index][row]);
        if (!port->waiting && port->outbox.held_packets) join_ring(sw, port, true);
    }
}

/* Sends one bundle per port and round, so that no port waits for another's backlog. */
static void flush_outboxes(struct sa_switch *sw) {
    sw->flushed_ns = sw->now_ns;
    while (sw->first_waiting && !sw->full && !sw->error) {
        uint32_t count = 0;
        while (sw->first_waiting && count < MESSAGES_MAX) {
            struct port *port = sw->first_waiting;
            sw->first_waiting = port->next_waiting;
            port->waiting = false;
            gather_message(sw, port, count++);
            if (port->outbox.held_packets) join_ring(sw, port, false);
        }
        sw->error = sa_udp_send(sw->config.udp, sw->messages, count);
        settle_messages(sw, count);
    }
}

/* ---- results without impairments: straight from the arena to all ports */

/* A packet with a buffer of its own for a result and its tag, if it has one; or NULL. */
static struct sa_packet *take_packet(struct sa_switch *sw, const uint8_t *bytes, uint32_t size, const uint8_t *tag,
                                     uint8_t tos) {
    struct sa_packet *packet = sa_pool_take(sw->pool, NULL, size + (tag ? SA_HOP_TAG_BYTES : 0), tos);
    if (!packet) return NULL;
    memcpy(packet->buffer->bytes, bytes, size);
    if (tag) memcpy(packet->buffer->bytes + size, tag, SA_HOP_TAG_BYTES);
    return packet;
}

static void park(struct sa_switch *sw, struct port *port, const struct sa_udp_message *message, uint32_t from) {
    uint8_t tos = message->tos == SA_TOS_OF_SOCKET ? 0 : (uint8_t)message->tos;
    for (uint32_t row = from; row < message->rows; row++) {
        const uint8_t *bytes = message->bytes ? message->bytes + (size_t)row * message->size : message->frames[row];
        const uint8_t *tag = message->trailers ? message->trailers + (size_t)row * SA_HOP_TAG_BYTES : NULL;
        struct sa_packet *packet = take_packet(sw, bytes, message->size, tag, tos);
        if (packet)
            put_in_outbox(sw, port, packet);
        else
            sw->counters[SA_SWITCH_DROP_POOL]++;
    }
}

static void send_messages(struct sa_switch *sw) {
    if (!sw->message_count) return;
    int error = sa_udp_send(sw->config.udp, sw->messages, sw->message_count);
    if (error) sw->error = error;
    for (uint32_t index = 0; index < sw->message_count; index++) {
        const struct sa_udp_message *message = &sw->messages[index];
        if (message->accepted == message->rows) continue;
        sw->full = true;
        const struct group *group = sw->multicasts[index];
        if (!group) park(sw, sw->addressees[index], message, message->accepted);
        for (uint32_t i = 0; group && i < group->count; i++)
            park(sw, port_of(sw, group->ports[i]), message, message->accepted);
    }
    sw->message_count = 0;
}

static void add_message(struct sa_switch *sw, struct sa_udp_message message, struct port *port,
                        const struct group *group) {
    if (sw->message_count == MESSAGES_MAX) send_messages(sw);
    message.to = port ? &port->address : &group->address;
    sw->addressees[sw->message_count] = port;
    sw->multicasts[sw->message_count] = group;
    sw->messages[sw->message_count++] = message;
}

/* Can the kernel copy these results for all their ports? Then the group has the address that stands for them. */
static bool is_multicast(struct sa_switch *sw, struct group *group) {
    struct sa_header header;
    memcpy(&header, sw->frames[group->first], sizeof header);
    uint32_t job = SA_BE16(header.job), kind = SA_BE32(header.kind);
    if (group->count < 2 || !sw->multicast[job] || sw->full || group->hop) return false;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct port *port = port_of(sw, group->ports[i]);
        if (!port || port->waiting) return false;
    }
    uint32_t without = sa_route(kind) == SA_ROUTE_ALL ? 0 : SA_GROUP_WITHOUT | sa_owner(kind);
    group->address = (struct sa_address){.family = AF_INET, .port = GROUP_PORT,
                                        .host = {SA_GROUP, (uint8_t)without, (uint8_t)(job >> 8), (uint8_t)job}};
    return true;
}

/* The memory of a group's results if they lie back to back, else NULL. */
static const uint8_t *one_piece(const struct sa_switch *sw, const struct group *group) {
    const uint8_t *first = sw->frames[group->first], *last = sw->frames[group->first + group->rows - 1];
    return last == first + (size_t)(group->rows - 1) * group->size ? first : NULL;
}

static void send_group(struct sa_switch *sw, struct group *group) {
    struct sa_udp_message message = {.bytes = one_piece(sw, group),
                                     .frames = &sw->frames[group->first],
                                     .rows = group->rows,
                                     .size = group->size,
                                     .tos = group->tos ? group->tos : SA_TOS_OF_SOCKET};
    if (is_multicast(sw, group)) {
        add_message(sw, message, NULL, group);
        return;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        struct port *port = port_of(sw, group->ports[i]);
        if (!port) continue;
        if (sw->message_count == MESSAGES_MAX) send_messages(sw); /* their tags are in use */
        if (group->hop) message.trailers = sa_switch_write_tags(sw, group, group->ports[i]);
        if (port->waiting || sw->full) /* keep the order: packets wait already */
            park(sw, port, &message, 0);
        else
            add_message(sw, message, port, NULL);
    }
}

static void flush_results(struct sa_switch *sw) {
    if (!sw->result_count) return;
    uint32_t first = 0;
    for (uint32_t g = 0; g < sw->group_count; g++) {
        sw->groups[g].first = first;
        first += sw->groups[g].rows;
        sw->groups[g].rows = 0;
    }
    for (uint32_t i = 0; i < sw->result_count; i++) {
        struct group *group = &sw->groups[sw->results[i].group];
        sw->hashes[group->first + group->rows] = sw->results[i].hash;
        sw->frames[group->first + group->rows++] = sw->results[i].bytes;
    }
    for (uint32_t g = 0; g < sw->group_count; g++) send_group(sw, &sw->groups[g]);
    send_messages(sw); /* before the arena is written again */
    sw->result_count = sw->group_count = 0;
    sw->arena_used = sw->header_only_used = 0;
    sw->flush_due = false;
}

static bool share_a_port(const struct group *group, const struct sa_targets *targets) {
    for (uint32_t i = 0; i < group->count; i++)
        for (uint32_t k = 0; k < targets->count; k++)
            if (group->ports[i] == targets->ports[k]) return true;
    return false;
}

/* The group that a result may join. stream: as a bit, 0 if the order doesn't matter. Groups leave one after another, so a
   result goes into none before one that has earlier results of its stream for one of its ports: workers take what is
   overtaken for lost (W8). */
static struct group *group_for(struct sa_switch *sw, const struct sa_targets *targets, uint32_t size, uint8_t tos,
                               uint64_t stream) {
    for (uint32_t g = sw->group_count; g-- > 0;) { /* mostly the newest */
        struct group *group = &sw->groups[g];
        if (group->ports == targets->ports && group->count == targets->count && group->size == size &&
            group->tos == tos)
            return group;
        if (group->streams & stream && share_a_port(group, targets)) break;
    }
    struct group *group = &sw->groups[sw->group_count++];
    *group = (struct group){.ports = targets->ports, .count = targets->count, .size = size, .tos = tos};
    return group;
}

static void add_result(struct sa_switch *sw, const uint8_t *bytes, uint32_t size, const struct sa_targets *targets,
                       uint8_t tos, uint64_t stream) {
    struct group *group = group_for(sw, targets, size, tos, stream);
    struct sa_hop *hop = sa_switch_hop_of(sw, bytes);
    group->streams |= stream;
    group->hop = hop; /* that of all of them, as they go to the same ports of a job */
    uint64_t hash = hop ? sa_hop_hash(hop, bytes, size, 0) : 0;
    sw->results[sw->result_count++] = (struct result){bytes, hash, (uint32_t)(group - sw->groups)};
    if (++group->rows == sw->rows_per_flush) sw->flush_due = true;
}

/* A packet causes up to two results: with values, and header-only. */
static void decide_in_arena(struct sa_switch *sw, const uint8_t *datagram, uint32_t size, uint32_t port, uint8_t tos) {
    uint32_t room = size > SA_HEADER_BYTES ? size : sw->config.datagram_bytes;
    if (sw->arena_used + room > ARENA_BYTES || sw->result_count + 2 > RESULTS_MAX || sw->group_count + 2 > GROUPS_MAX)
        flush_results(sw);
    struct sa_results results;
    uint8_t *out = sw->arena + sw->arena_used, *header_only = sw->header_only[sw->header_only_used];
    enum sa_outcome outcome = sa_plane_accept(sw->config.plane, datagram, size, port, out, header_only, &results);
    if (!sa_sends(outcome)) return;
    bool ordered = outcome == SA_BROADCAST || outcome == SA_UP;
    uint64_t stream = ordered ? UINT64_C(1) << (datagram[offsetof(struct sa_header, stream)] & 63) : 0;
    if (results.valued.count) {
        add_result(sw, out, results.size, &results.valued, tos, stream);
        sw->arena_used += results.size;
    }
    if (results.header_only.count) {
        add_result(sw, header_only, SA_HEADER_BYTES, &results.header_only, tos, stream);
        sw->header_only_used++;
    }
    if (sw->flush_due) flush_results(sw);
}

/* ---- links: queue, rate and impairments of one port and direction */

static void decide(struct sa_switch *sw, uint8_t *datagram, uint32_t size, uint32_t port, uint8_t tos, int64_t time_ns);

/* A packet is at the end of its link. */
static void arrive(struct sa_switch *sw, struct port *port, struct sa_packet *packet, int64_t time_ns) {
    if (packet->direction == SA_DIRECTION_DOWN) {
        put_in_outbox(sw, port, packet);
        return;
    }
    decide(sw, packet->buffer->bytes, packet->buffer->size, port->number, packet->tos, time_ns);
    sa_pool_give(sw->pool, packet);
}

static void arrive_late(struct sa_switch *sw, struct port *port, struct sa_packet *packet, int64_t time_ns,
                        int64_t late_ns) {
    if (!late_ns) {
        arrive(sw, port, packet, time_ns);
        return;
    }
    sa_timeline_push(&sw->timeline, (struct sa_timed){.time_ns = time_ns + late_ns,
                                                      .packet = packet,
                                                      .port = port->number,
                                                      .direction = packet->direction});
}

/* Draw the faults of a lane's next packet, and count them. */
static struct sa_fate next_fate(struct sa_switch *sw, struct port *port, enum sa_direction direction) {
    struct sa_fate fate = {0, 1, {0, 0}};
    if (!sw->faulty[direction]) return fate;
    struct lane *lane = &port->lanes[direction];
    sa_fate_of(&sw->config.impairments[direction], lane->key, lane->number++, &fate);
    uint64_t *counters = &sw->counters[direction == SA_DIRECTION_UP ? SA_SWITCH_UP_LOST : SA_SWITCH_DOWN_LOST];
    for (uint32_t kind = 0; kind < 4; kind++) counters[kind] += fate.mishaps >> kind & 1u;
    return fate;
}

/* Put a packet on the link; its last bit left the queue at time_ns. */
static void travel(struct sa_switch *sw, struct port *port, struct sa_packet *packet, const struct sa_fate *fate,
                   int64_t time_ns) {
    if (!fate->copies) {
        sa_pool_give(sw->pool, packet);
        return;
    }
    struct sa_packet *copy = NULL;
    if (fate->copies == 2) {
        copy = sa_pool_share(sw->pool, packet);
        if (!copy) sw->counters[SA_SWITCH_DROP_POOL]++;
    }
    arrive_late(sw, port, packet, time_ns, fate->late_ns[0]);
    if (copy) arrive_late(sw, port, copy, time_ns, fate->late_ns[1]);
}

static void schedule_departure(struct sa_switch *sw, struct port *port, uint32_t direction) {
    struct lane *lane = &port->lanes[direction];
    int64_t time_ns = sa_queue_departure_ns(&lane->queue);
    lane->scheduled = time_ns != SA_NEVER;
    if (!lane->scheduled) return;
    sa_timeline_push(&sw->timeline,
                     (struct sa_timed){.time_ns = time_ns, .port = port->number, .direction = direction});
}

/* Send a packet over a port's link. */
static void enter_link(struct sa_switch *sw, struct port *port, struct sa_packet *packet, int64_t time_ns) {
    enum sa_direction direction = packet->direction;
    if (!sw->rated[direction]) {
        struct sa_fate fate = next_fate(sw, port, direction);
        travel(sw, port, packet, &fate, time_ns);
        return;
    }
    bool up = direction == SA_DIRECTION_UP;
    struct lane *lane = &port->lanes[direction];
    if (enqueue(sw, &lane->queue, packet, time_ns, up ? SA_SWITCH_UP_DROP_QUEUE_FULL : SA_SWITCH_DROP_QUEUE_FULL,
                up ? SA_SWITCH_UP_ECN_MARKED : SA_SWITCH_ECN_MARKED) &&
        !lane->scheduled)
        schedule_departure(sw, port, direction);
}

/* Give a result to the links of its targets; without tags all share its buffer. NULL: there was no memory for it. */
static void enter_links(struct sa_switch *sw, const struct sa_packet *result, const struct sa_targets *targets,
                        int64_t time_ns) {
    if (!targets->count) return;
    uint8_t tag[SA_HOP_TAG_BYTES];
    const struct sa_buffer *buffer = result ? result->buffer : NULL;
    struct sa_hop *hop = result ? sa_switch_hop_of(sw, buffer->bytes) : NULL;
    uint64_t hash = hop ? sa_hop_hash(hop, buffer->bytes, buffer->size, 0) : 0;
    for (uint32_t i = 0; i < targets->count; i++) {
        struct port *to = port_of(sw, targets->ports[i]);
        if (!to) continue;
        if (hop) sa_hop_write_tag(hop, buffer->bytes, hash, sa_hop_child_at(hop, to->number), tag);
        struct sa_packet *packet = !result ? NULL
                                   : hop   ? take_packet(sw, buffer->bytes, buffer->size, tag, result->tos)
                                           : sa_pool_share(sw->pool, result);
        if (!packet) {
            sw->counters[SA_SWITCH_DROP_POOL]++;
            continue;
        }
        packet->port = to->number;
        packet->direction = SA_DIRECTION_DOWN;
        enter_link(sw, to, packet, time_ns);
    }
}

static void decide_in_pool(struct sa_switch *sw, const uint8_t *datagram, uint32_t size, uint32_t port, uint8_t tos,
                           int64_t time_ns) {
    struct sa_packet *result = sa_pool_take(sw->pool, NULL, sa_pool_buffer_bytes(sw->pool), tos), *header_only = NULL;
    struct sa_results results;
    uint8_t *out = result ? result->buffer->bytes : sw->arena; /* without memory the data plane still sums it */
    enum sa_outcome outcome = sa_plane_accept(sw->config.plane, datagram, size, port, out, sw->header_only[0], &results);
    if (sa_sends(outcome)) {
        if (result) result->buffer->size = results.size;
        if (results.header_only.count) header_only = sa_pool_take(sw->pool, sw->header_only[0], SA_HEADER_BYTES, tos);
        enter_links(sw, result, &results.valued, time_ns);
        enter_links(sw, header_only, &results.header_only, time_ns);
    }
    if (result) sa_pool_give(sw->pool, result);
    if (header_only) sa_pool_give(sw->pool, header_only);
}

/* tos: as it came; its ECN bits are also those of results, but for a contribution's CE, which becomes a mark (G2). */
static void decide(struct sa_switch *sw, uint8_t *datagram, uint32_t size, uint32_t port, uint8_t tos, int64_t time_ns) {
    if (!sa_switch_verify(sw, datagram, &size)) return;
    if (sa_is_ce(tos)) tos = (uint8_t)sa_mark_contribution(datagram, size, tos);
    if (sw->active[SA_DIRECTION_DOWN])
        decide_in_pool(sw, datagram, size, port, tos, time_ns);
    else
        decide_in_arena(sw, datagram, size, port, tos);
}

/* Handle a datagram that arrived on a port whose link up has a queue or impairments. */
static void enter_up(struct sa_switch *sw, struct port *port, uint8_t *datagram, uint32_t size, uint8_t tos) {
    struct sa_fate fate;
    if (!sw->rated[SA_DIRECTION_UP]) {
        fate = next_fate(sw, port, SA_DIRECTION_UP);
        if (!fate.copies) return;
    }
    bool at_once = !sw->rated[SA_DIRECTION_UP] && fate.copies == 1 && !fate.late_ns[0];
    if (at_once || size > sa_pool_buffer_bytes(sw->pool)) { /* too large for any job: counted and dropped */
        decide(sw, datagram, size, port->number, tos, sw->now_ns);
        return;
    }
    struct sa_packet *packet = sa_pool_take(sw->pool, datagram, size, tos);
    if (!packet) {
        sw->counters[SA_SWITCH_DROP_POOL]++;
        return;
    }
    packet->port = port->number;
    packet->direction = SA_DIRECTION_UP;
    if (sw->rated[SA_DIRECTION_UP])
        enter_link(sw, port, packet, sw->now_ns);
    else
        travel(sw, port, packet, &fate, sw->now_ns);
}

static void run_timeline(struct sa_switch *sw) {
    while (sa_timeline_next_ns(&sw->timeline) <= sw->now_ns) {
        struct sa_timed due = sa_timeline_pop(&sw->timeline);
        struct port *port = sw->ports[due.port];
        if (due.packet) {
            arrive(sw, port, due.packet, due.time_ns);
            continue;
        }
        struct sa_packet *packet = sa_queue_depart(&port->lanes[due.direction].queue, due.time_ns);
        schedule_departure(sw, port, due.direction);
        struct sa_fate fate = next_fate(sw, port, due.direction);
        travel(sw, port, packet, &fate, due.time_ns);
    }
}

/* ---- the event loop */

/* Returns the number of arrivals, or -errno. */
static int receive(struct sa_switch *sw) {
    const struct sa_udp_arrival *arrivals;
    int count = sa_udp_receive(sw->config.udp, &arrivals);
    for (int i = 0; i < count; i++) {
        const struct sa_udp_arrival *arrival = &arrivals[i];
        struct port *port = sa_directory_find(&sw->directory, arrival->sender);
        if (!port) {
            sw->counters[SA_SWITCH_DROP_UNKNOWN_SENDER] += arrival->rows;
            continue;
        }
        uint8_t *datagram = arrival->bytes;
        for (uint32_t row = 0; row < arrival->rows; row++, datagram += arrival->size) {
            if (sw->active[SA_DIRECTION_UP])
                enter_up(sw, port, datagram, arrival->size, (uint8_t)arrival->tos);
            else
                decide(sw, datagram, arrival->size, port->number, (uint8_t)arrival->tos, sw->now_ns);
        }
    }
    return count;
}

/* When there will be something to do without an arrival. Under load that is once per grain, so that packets of one
   grain are sent together; after a pause, at once. */
static int64_t wake_ns(const struct sa_switch *sw, int64_t until_ns) {
    int64_t next_ns = sw->first_waiting && !sw->full ? 0 : sa_timeline_next_ns(&sw->timeline);
    if (next_ns < sw->flushed_ns + sw->grain_ns) next_ns = sw->flushed_ns + sw->grain_ns;
    return next_ns < until_ns ? next_ns : until_ns;
}

SA_EXPORT int sa_switch_run(struct sa_switch *sw, int64_t until_ns) {
    if (sw->timed) prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* the default lets every sleep be 50 us longer */
    sw->error = 0;
    for (uint32_t iteration = 1;; iteration++) {
        sw->now_ns = sa_now_ns();
        sw->full = false;
        run_timeline(sw);
        int arrived = receive(sw);
        if (arrived < 0) return arrived;
        if (!arrived || iteration % ITERATIONS_PER_CHECK == 0) flush_results(sw);
        if (sw->now_ns - sw->flushed_ns >= sw->grain_ns) flush_outboxes(sw);
        if (sw->error) return sw->error;
        if (sw->now_ns >= until_ns && !sw->result_count) return 0;
        if (arrived && iteration % ITERATIONS_PER_CHECK) continue;
        int woken = sa_udp_wait(sw->config.udp, sw->config.wake, arrived ? 0 : wake_ns(sw, until_ns), sw->full);
        if (woken < 0) return woken;
        if (woken & SA_WOKE_CALLED) return 1;
    }
}

/* ---- making and freeing */

SA_EXPORT struct sa_switch *sa_switch_new(const struct sa_switch_config *config) {
    struct sa_switch *sw = calloc(1, sizeof *sw);
    if (!sw) return NULL;
    sw->config = *config;
    if (sw->config.segments_max > SEGMENTS_MAX) sw->config.segments_max = SEGMENTS_MAX;
    sw->rows_per_flush = ROWS_PER_FLUSH / sw->config.segments_max * sw->config.segments_max;
    for (uint32_t direction = SA_DIRECTION_UP; direction < SA_DIRECTIONS; direction++) {
        const struct sa_impairment *impairment = &config->impairments[direction];
        sw->rated[direction] = config->queues[direction].rate_bps != 0;
        sw->faulty[direction] = sa_impairs(impairment);
        sw->active[direction] = sw->rated[direction] || sw->faulty[direction];
        if (sw->rated[direction] || impairment->delay_ns || impairment->jitter_ns) sw->grain_ns = config->grain_ns;
        sw->timed |= sw->grain_ns != 0 || impairment->duplicate || impairment->reorder;
    }
    sw->pool = sa_pool_new(config->pool_packets, config->datagram_bytes);
    sw->arena = malloc(ARENA_BYTES);
    if (!sw->pool || !sw->arena || sa_timeline_reserve(&sw->timeline, config->pool_packets)) {
        sa_switch_free(sw);
        return NULL;
    }
    return sw;
}

SA_EXPORT void sa_switch_free(struct sa_switch *sw) {
    if (!sw) return;
    for (uint32_t number = 0; number < sw->ports_size; number++) free(sw->ports[number]);
    for (uint32_t job = 0; job < SA_JOBS; job++) sa_switch_authenticate(sw, job, NULL, NULL);
    free(sw->ports);
    sa_directory_free(&sw->directory);
    free(sw->arena);
    sa_timeline_free(&sw->timeline);
    sa_pool_free(sw->pool);
    free(sw);
}

SA_EXPORT const uint64_t *sa_switch_counters(const struct sa_switch *sw) { return sw->counters; }
