/* A member's loop over its connections. See mesh.h. */
#include "transport/native/hosts/mesh.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "switchagg/native/abi.h"
#include "switchagg/native/room.h"

#define INPUT ((uint32_t)(EPOLLIN | EPOLLRDHUP))
#define WAKE UINT32_MAX
#define NOWHERE UINT32_MAX
#define READY_MAX 64
#define CHECK_NS 2000000 /* how often a closing mesh checks whether the peers' kernels have everything */
#define ROUNDS_MAX 8     /* of sending before others' messages are looked at */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

SA_EXPORT struct sa_mesh *sa_mesh_new(uint32_t members, uint32_t flows, const uint8_t *classes,
                                      uint64_t message_bytes_max, int wake, uint64_t *counters) {
    struct sa_mesh *mesh = calloc(1, sizeof *mesh);
    if (!mesh) return NULL;
    *mesh = (struct sa_mesh){.members = members, .flows = flows, .message_bytes_max = message_bytes_max,
                             .counters = counters, .wake = wake};
    memcpy(mesh->classes, classes, flows);
    mesh->changed.end = &mesh->changed.first;
    mesh->poll = epoll_create1(EPOLL_CLOEXEC);
    mesh->connections = calloc((size_t)members * flows, sizeof(struct sa_connection *));
    mesh->by_place = malloc((size_t)members * flows * sizeof *mesh->by_place);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = WAKE};
    if (mesh->poll < 0 || !mesh->connections || !mesh->by_place ||
        epoll_ctl(mesh->poll, EPOLL_CTL_ADD, wake, &wanted)) {
        sa_mesh_free(mesh);
        return NULL;
    }
    for (uint32_t i = 0; i < members * flows; i++) mesh->by_place[i] = NOWHERE;
    return mesh;
}

SA_EXPORT int sa_mesh_add(struct sa_mesh *mesh, int fd, uint32_t member, uint32_t flow) {
    struct sa_connection *connection = calloc(1, sizeof *connection);
    if (!connection) return -ENOMEM;
    connection->mesh = mesh;
    connection->fd = fd;
    connection->member = member;
    connection->flow = flow;
    connection->number = mesh->connection_count;
    connection->watched = INPUT;
    connection->can_send = true;
    connection->last = &connection->first;
    struct epoll_event wanted = {.events = INPUT, .data.u32 = connection->number};
    if (epoll_ctl(mesh->poll, EPOLL_CTL_ADD, fd, &wanted)) {
        int error = errno;
        free(connection);
        return -error;
    }
    mesh->by_place[member * mesh->flows + flow] = mesh->connection_count;
    mesh->connections[mesh->connection_count++] = connection;
    return 0;
}

SA_EXPORT void sa_mesh_free(struct sa_mesh *mesh) {
    if (!mesh) return;
    sa_mesh_stop(mesh);
    for (uint32_t i = 0; i < mesh->connection_count; i++) sa_connection_free(mesh->connections[i]);
    for (uint32_t i = 0; i < mesh->running_count; i++) free(mesh->running[i]);
    for (uint32_t i = 0; i < mesh->flows; i++) {
        struct sa_credit_queue *outbox = &mesh->outboxes[i];
        while (outbox->count) free(outbox->heap[--outbox->count].item);
        free(outbox->heap);
    }
    sa_messages_free(mesh->messages.unused);
    sa_spares_free(&mesh->spares);
    if (mesh->poll >= 0) close(mesh->poll);
    free(mesh->connections);
    free(mesh->by_place);
    free(mesh->running);
    free(mesh->calls);
    free(mesh->events);
    free(mesh->reported);
    free(mesh);
}

/* Events. */

struct sa_mesh_event *sa_mesh_event_new(struct sa_mesh *mesh, enum sa_mesh_event_kind kind) {
    if (!sa_takes_one(&mesh->events, mesh->event_count, &mesh->event_room, 64, sizeof *mesh->events)) {
        mesh->error = -ENOMEM;
        return NULL;
    }
    struct sa_mesh_event *event = &mesh->events[mesh->event_count++];
    *event = (struct sa_mesh_event){.kind = kind};
    return event;
}

SA_EXPORT uint32_t sa_mesh_take_events(struct sa_mesh *mesh, struct sa_mesh_event **events) {
    uint32_t count = mesh->event_count, room = mesh->taken_room;
    struct sa_mesh_event *reported = mesh->reported;
    *events = mesh->reported = mesh->events;
    mesh->taken_room = mesh->event_room;
    mesh->events = reported;
    mesh->event_room = room;
    mesh->event_count = 0;
    return count;
}

void sa_mesh_message_left(struct sa_mesh *mesh, struct sa_message *message) {
    if (message->is_credited) mesh->outboxes[message->flow].below_bytes -= (int64_t)message->size_bytes;
    if (message->running) {
        if (!message->running->is_stopped) sa_execution_sent(message->running->execution, (uint32_t)message->ticket);
    } else if (!message->is_last) {
        struct sa_mesh_event *event = sa_mesh_event_new(mesh, SA_MESH_SENT);
        if (event) event->ticket = message->ticket;
    }
    sa_messages_give(&mesh->messages, message);
}

static struct sa_connection *connection_at(const struct sa_mesh *mesh, uint32_t member, uint32_t flow) {
    uint32_t number = mesh->by_place[member * mesh->flows + flow];
    return number == NOWHERE ? NULL : mesh->connections[number];
}

void sa_mesh_lost(struct sa_mesh *mesh, struct sa_connection *connection, enum sa_gone reason, int32_t number) {
    struct sa_mesh_event *event = sa_mesh_event_new(mesh, SA_MESH_GONE);
    if (event) {
        event->member = connection->member;
        event->reason = reason;
        event->number = number;
        memcpy(event->head, connection->start, SA_MESSAGE_HEADER_BYTES);
    }
    mesh->counters[SA_MESH_LOST]++;
    for (uint32_t flow = 0; flow < mesh->flows; flow++) {
        struct sa_connection *sibling = connection_at(mesh, connection->member, flow);
        if (sibling) sa_connection_close(sibling);
    }
}

void sa_mesh_ended(struct sa_mesh *mesh, struct sa_connection *connection, enum sa_gone reason, int32_t number) {
    sa_connection_close(connection);
    for (uint32_t flow = 0; flow < mesh->flows; flow++) { /* what is on its way on the others was sent before */
        struct sa_connection *sibling = connection_at(mesh, connection->member, flow);
        if (sibling && sibling->fd >= 0) return;
    }
    sa_mesh_lost(mesh, connection, reason, number);
}

/* Sending. */

/* To its connection, or back if there is none any more. */
static void pass_on(struct sa_mesh *mesh, struct sa_message *message) {
    struct sa_connection *connection = connection_at(mesh, message->to, message->flow);
    if (connection && connection->can_send)
        sa_connection_queue(connection, message);
    else
        sa_mesh_message_left(mesh, message);
}

SA_EXPORT int sa_mesh_send(struct sa_mesh *mesh, const struct sa_mesh_outgoing *outgoing, bool waits_for_credit) {
    struct sa_message *message = sa_messages_take(&mesh->messages, 0, outgoing->head_bytes, outgoing->size_bytes);
    if (!message) return -ENOMEM;
    memcpy(message->start + SA_MESSAGE_HEADER_BYTES, outgoing->head, outgoing->head_bytes);
    message->ticket = outgoing->ticket;
    message->data = outgoing->data;
    message->to = outgoing->to;
    message->flow = outgoing->flow;
    if (!waits_for_credit) {
        pass_on(mesh, message);
        return mesh->error;
    }
    int result = sa_credit_queue_push(&mesh->outboxes[message->flow],
                                      (struct sa_credit_waiting){.priority = outgoing->priority, .item = message});
    if (result) sa_messages_give(&mesh->messages, message);
    return result;
}

static void flush(struct sa_mesh *mesh) {
    for (uint32_t i = 0; i < mesh->connection_count; i++) /* the most urgent flow first */
        if (mesh->connections[i]->is_unsent) sa_connection_send(mesh->connections[i]);
}

/* Whether there may be more to send at once. */
static bool carry(struct sa_mesh *mesh, int64_t credit_bytes) {
    bool any = true;
    for (int round = 0; any && round < ROUNDS_MAX; round++) {
        sa_mesh_collect(mesh);
        any = false;
        for (uint32_t flow = 0; flow < mesh->flows; flow++) {
            struct sa_credit_queue *outbox = &mesh->outboxes[flow];
            for (struct sa_credit_waiting first; sa_credit_queue_pop(outbox, credit_bytes, &first); any = true) {
                struct sa_message *message = first.item;
                message->is_credited = true;
                outbox->below_bytes += (int64_t)message->size_bytes;
                pass_on(mesh, message);
            }
        }
        flush(mesh);
        any |= mesh->changed.first != NULL;
    }
    return any;
}

/* The loop. */

static void handle(struct sa_mesh *mesh, const struct epoll_event *ready) {
    if (ready->data.u32 == WAKE) {
        uint64_t count;
        if (read(mesh->wake, &count, sizeof count) == sizeof count) mesh->is_woken = true;
        return;
    }
    struct sa_connection *connection = mesh->connections[ready->data.u32];
    if (ready->events & EPOLLOUT && connection->can_send) sa_connection_send(connection);
    if (ready->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) sa_connection_read(connection);
}

/* Handle what is ready, in the order of urgency; -errno, or 0. */
static int poll_once(struct sa_mesh *mesh, int64_t timeout_ns) {
    struct epoll_event ready[READY_MAX];
    int64_t ms = (timeout_ns + 999999) / 1000000;
    int count = epoll_wait(mesh->poll, ready, READY_MAX, timeout_ns < 0 ? -1 : ms > INT32_MAX ? INT32_MAX : (int)ms);
    if (count < 0) return errno == EINTR ? 0 : -errno;
    for (int i = 1; mesh->flows > 1 && i < count; i++) {
        struct epoll_event event = ready[i];
        int at = i;
        for (; at && ready[at - 1].data.u32 > event.data.u32; at--) ready[at] = ready[at - 1];
        ready[at] = event;
    }
    for (int i = 0; i < count && !mesh->error; i++) handle(mesh, &ready[i]);
    return mesh->error;
}

SA_EXPORT int sa_mesh_turn(struct sa_mesh *mesh, int64_t timeout_ns, int64_t credit_bytes) {
    int64_t until_ns = timeout_ns > 0 ? now_ns() + timeout_ns : timeout_ns;
    mesh->is_woken = mesh->is_partial = false;
    bool more = carry(mesh, credit_bytes);
    for (int64_t left_ns = timeout_ns;;) {
        int result = poll_once(mesh, more || mesh->event_count ? 0 : left_ns);
        if (result) return result;
        more = carry(mesh, credit_bytes);
        if (mesh->error) return mesh->error;
        if (mesh->event_count || mesh->is_woken || mesh->is_partial) return 1;
        if (timeout_ns < 0) continue;
        left_ns = timeout_ns ? until_ns - now_ns() : 0;
        if (left_ns <= 0) return 0;
    }
}

SA_EXPORT int sa_mesh_give(struct sa_mesh *mesh, uint32_t number, uint8_t *memory) {
    struct sa_connection *connection = mesh->connections[number];
    if (connection->state != SA_AT_MEMORY) return 0; /* it was lost since */
    connection->data = memory;
    connection->state = SA_AT_DATA;
    sa_connection_parse(connection);
    return mesh->error;
}

/* Whether something queued for a peer is not yet in its kernel. */
static bool has_unacknowledged(const struct sa_connection *connection) {
    int bytes = 0;
    if (connection->fd < 0 || !connection->can_send) return false;
    return connection->first || (!ioctl(connection->fd, SIOCOUTQ, &bytes) && bytes > 0);
}

SA_EXPORT void sa_mesh_linger(struct sa_mesh *mesh, int64_t linger_ns) {
    int64_t until_ns = now_ns() + linger_ns;
    sa_mesh_stop(mesh);
    mesh->is_closing = true;
    for (uint32_t i = 0; i < mesh->connection_count; i++) {
        struct sa_connection *connection = mesh->connections[i];
        sa_connection_discard(connection); /* its memory may be used for other things now */
        sa_connection_parse(connection);
        struct sa_message *leaves = connection->can_send ? sa_messages_take(&mesh->messages, 1, 0, 0) : NULL;
        if (!leaves) continue;
        leaves->is_last = true;
        leaves->flow = connection->flow;
        sa_connection_queue(connection, leaves);
    }
    for (;;) {
        flush(mesh);
        bool is_left = false;
        for (uint32_t i = 0; !is_left && i < mesh->connection_count; i++)
            is_left = has_unacknowledged(mesh->connections[i]);
        int64_t left_ns = until_ns - now_ns();
        if (!is_left || left_ns <= 0 || mesh->error) return;
        mesh->event_count = 0;
        if (poll_once(mesh, left_ns < CHECK_NS ? left_ns : CHECK_NS)) return;
    }
}

SA_EXPORT int64_t sa_mesh_below_bytes(const struct sa_mesh *mesh) {
    int64_t bytes = 0;
    for (uint32_t flow = 0; flow < mesh->flows; flow++) bytes += mesh->outboxes[flow].below_bytes;
    return bytes;
}
