/* A connection of a mesh sends messages, and puts those received together again. See mesh.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/native/hosts/mesh.h"

#define PARTS_MAX 64u                     /* of one system call */
#define CALL_BYTES (UINT64_C(1) << 18)    /* most data of one system call: it is still in the cache when it is used */
#define LONG_BYTES (UINT64_C(1) << 15)
#define BESIDE_LONG_BYTES (1u << 10)      /* received with a long message: it has to be copied */
#define READS_MAX 8                       /* of one connection in a row */
#define INPUT ((uint32_t)(EPOLLIN | EPOLLRDHUP))
#define MESSAGE 0u
#define LEAVES 1u

/* Sending. */

void sa_connection_queue(struct sa_connection *connection, struct sa_message *message) {
    message->next = NULL;
    *connection->last = message;
    connection->last = &message->next;
    connection->is_unsent = true;
}

static void watch(struct sa_connection *connection, uint32_t events) {
    if (connection->watched == events || connection->fd < 0) return;
    struct epoll_event wanted = {.events = events, .data.u32 = connection->number};
    epoll_ctl(connection->mesh->poll, EPOLL_CTL_MOD, connection->fd, &wanted);
    connection->watched = events;
}

/* The first message is out of the queue. */
static void leave(struct sa_connection *connection) {
    struct sa_message *message = connection->first;
    connection->first = message->next;
    if (!connection->first) connection->last = &connection->first;
    sa_mesh_message_left(connection->mesh, message);
}

static void stop_sending(struct sa_connection *connection) {
    connection->can_send = connection->is_unsent = false;
    while (connection->first) leave(connection);
    connection->sent_bytes = 0;
    watch(connection, INPUT);
}

/* Up to PARTS_MAX parts of what is queued; their bytes are added to `bytes`. */
static size_t gather(const struct sa_connection *connection, struct iovec *parts, uint64_t *bytes, bool *is_all) {
    size_t count = 0;
    uint64_t skip = connection->sent_bytes;
    const struct sa_message *message = connection->first;
    for (; message && count + 2 <= PARTS_MAX; message = message->next) {
        if (skip < message->start_bytes) {
            parts[count++] = (struct iovec){(uint8_t *)message->start + skip, message->start_bytes - skip};
            skip = 0;
        } else {
            skip -= message->start_bytes;
        }
        if (message->size_bytes > skip)
            parts[count++] = (struct iovec){(uint8_t *)message->data + skip, message->size_bytes - skip};
        skip = 0;
    }
    for (size_t i = 0; i < count; i++) *bytes += parts[i].iov_len;
    *is_all = !message;
    return count;
}

void sa_connection_send(struct sa_connection *connection) {
    uint64_t *counters = connection->mesh->counters;
    connection->is_unsent = false;
    while (connection->first) {
        struct iovec parts[PARTS_MAX];
        bool is_all = false;
        uint64_t bytes = 0;
        struct msghdr wanted = {.msg_iov = parts};
        wanted.msg_iovlen = gather(connection, parts, &bytes, &is_all);
        ssize_t accepted = sendmsg(connection->fd, &wanted, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (accepted < 0 && (errno == EAGAIN || errno == EINTR)) {
            counters[SA_MESH_SEND_WOULD_BLOCK]++;
            break;
        }
        if (accepted < 0) {
            stop_sending(connection);
            return;
        }
        counters[SA_MESH_SENDS]++;
        connection->sent_bytes += (uint64_t)accepted;
        while (connection->first) {
            struct sa_message *message = connection->first;
            uint64_t size = message->start_bytes + message->size_bytes;
            if (connection->sent_bytes < size) break;
            connection->sent_bytes -= size;
            if (!message->is_last) {
                counters[SA_MESH_TX_MESSAGES]++;
                counters[SA_MESH_TX_BYTES] += message->size_bytes;
            }
            leave(connection);
        }
        if (is_all || (uint64_t)accepted < bytes) break; /* all, or as much as there was room for */
    }
    watch(connection, connection->first ? INPUT | EPOLLOUT : INPUT);
}

/* Receiving. */

static void received(struct sa_connection *connection) {
    struct sa_mesh *mesh = connection->mesh;
    connection->state = SA_AT_START;
    uint32_t head_bytes = connection->start_bytes - SA_MESSAGE_HEADER_BYTES;
    connection->start_bytes = 0;
    struct sa_mesh_execution *running = connection->running;
    struct sa_spare *spare = connection->spare;
    connection->running = NULL;
    connection->spare = NULL;
    if (connection->is_discarded) {
        connection->is_discarded = false;
        sa_spares_give(&mesh->spares, spare);
        return;
    }
    mesh->counters[SA_MESH_RX_MESSAGES]++;
    mesh->counters[SA_MESH_RX_BYTES] += connection->size_bytes;
    if (running) {
        int result = sa_execution_take(running->execution, connection->node, connection->member, spare);
        if (result) mesh->error = result;
        return;
    }
    struct sa_mesh_event *event = sa_mesh_event_new(mesh, SA_MESH_RECEIVED);
    if (!event) return;
    event->member = connection->member;
    event->connection = connection->number;
    event->size_bytes = connection->size_bytes;
    event->head_bytes = head_bytes;
    memcpy(event->head, connection->start + SA_MESSAGE_HEADER_BYTES, head_bytes);
}

/* The head is there: where the data goes. */
static void begin(struct sa_connection *connection) {
    struct sa_mesh *mesh = connection->mesh;
    uint32_t head_bytes = connection->start_bytes - SA_MESSAGE_HEADER_BYTES;
    const uint8_t *head = connection->start + SA_MESSAGE_HEADER_BYTES;
    connection->filled = 0;
    connection->state = SA_AT_DATA;
    connection->running = NULL;
    connection->is_discarded = mesh->is_closing;
    if (!mesh->is_closing)
        connection->running = sa_mesh_find(mesh, connection->member, head, head_bytes, connection->size_bytes,
                                           &connection->node);
    struct sa_mesh_execution *running = connection->running;
    if (running) running->execution->flags[connection->node] |= SA_CLAIMED;
    if (!connection->size_bytes) {
        received(connection);
        return;
    }
    if (running && !running->execution->waits[connection->node] &&
        running->execution->program->kinds[connection->node] == SA_NODE_OVERWRITE) {
        connection->data = sa_execution_memory(running->execution, connection->node);
    } else if (running || connection->is_discarded) {
        connection->spare = sa_spares_take(&mesh->spares, connection->size_bytes);
        if (!connection->spare) mesh->error = -ENOMEM;
        connection->data = connection->spare ? connection->spare->data : NULL;
    } else {
        connection->state = SA_AT_MEMORY;
        struct sa_mesh_event *event = sa_mesh_event_new(mesh, SA_MESH_WANTS_MEMORY);
        if (!event) return;
        event->member = connection->member;
        event->connection = connection->number;
        event->size_bytes = connection->size_bytes;
        event->head_bytes = head_bytes;
        memcpy(event->head, head, head_bytes);
    }
}

static uint32_t less(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

/* Add to header and head; false if they begin no message. */
static bool put_together(struct sa_connection *connection) {
    for (int part = 0; part < 2; part++) { /* the header has the length of the head */
        uint32_t want = SA_MESSAGE_HEADER_BYTES;
        if (connection->start_bytes >= SA_MESSAGE_HEADER_BYTES) want += connection->start[1];
        uint32_t step = less(want - connection->start_bytes, connection->end - connection->at);
        memcpy(connection->start + connection->start_bytes, connection->beside + connection->at, step);
        connection->start_bytes += step;
        connection->at += step;
        if (connection->start_bytes < SA_MESSAGE_HEADER_BYTES) return true;
        const uint8_t *header = connection->start;
        connection->size_bytes = (uint64_t)header[4] << 24 | (uint64_t)header[5] << 16 | (uint64_t)header[6] << 8 | header[7];
        if (header[0] == MESSAGE && header[1] <= SA_HEAD_BYTES_MAX &&
            connection->size_bytes <= connection->mesh->message_bytes_max)
            continue;
        struct sa_mesh *mesh = connection->mesh;
        if (header[0] == LEAVES)
            sa_mesh_ended(mesh, connection, SA_GONE_LEFT, 0);
        else
            sa_mesh_lost(mesh, connection, SA_GONE_NO_MESSAGE, 0);
        return false;
    }
    if (connection->start_bytes == SA_MESSAGE_HEADER_BYTES + connection->start[1]) begin(connection);
    return true;
}

bool sa_connection_parse(struct sa_connection *connection) {
    struct sa_mesh *mesh = connection->mesh;
    while (connection->at < connection->end && !mesh->error && connection->state != SA_AT_MEMORY) {
        if (connection->state == SA_AT_START) {
            if (!put_together(connection)) return false;
            continue;
        }
        uint32_t step = less(connection->size_bytes - connection->filled, connection->end - connection->at);
        memcpy(connection->data + connection->filled, connection->beside + connection->at, step);
        connection->filled += step;
        connection->at += step;
        if (connection->filled == connection->size_bytes) received(connection);
    }
    return !mesh->error;
}

/* A message that isn't an execution's has come in part: the caller may want to know. */
static void note_partial(struct sa_connection *connection) {
    if (connection->state == SA_AT_START ? connection->start_bytes > 0 : !connection->running)
        connection->mesh->is_partial = true;
}

/* Makes one system call; false if there is nothing more for now. */
static bool read_once(struct sa_connection *connection) {
    struct sa_mesh *mesh = connection->mesh;
    uint64_t wanted = 0, room = 0;
    uint32_t beside = SA_BESIDE_BYTES;
    struct iovec parts[2];
    size_t count = 0;
    if (connection->state == SA_AT_DATA) {
        wanted = connection->size_bytes - connection->filled;
        room = wanted < CALL_BYTES ? wanted : CALL_BYTES;
        if (connection->size_bytes >= LONG_BYTES) beside = BESIDE_LONG_BYTES;
        if (room < wanted) beside = 0;
        parts[count++] = (struct iovec){connection->data + connection->filled, room};
    }
    if (beside) parts[count++] = (struct iovec){connection->beside, beside};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t received_bytes = recvmsg(connection->fd, &message, MSG_DONTWAIT);
    if (received_bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (received_bytes < 0) {
        sa_mesh_lost(mesh, connection, SA_GONE_ERROR, errno);
        return false;
    }
    if (!received_bytes) {
        sa_mesh_ended(mesh, connection, SA_GONE_CLOSED, 0);
        return false;
    }
    mesh->counters[SA_MESH_RECEIVES]++;
    uint64_t bytes = (uint64_t)received_bytes, into = bytes < room ? bytes : room;
    if (connection->state == SA_AT_DATA) {
        connection->filled += into;
        if (connection->filled == connection->size_bytes) received(connection);
    }
    connection->at = 0;
    connection->end = (uint32_t)(bytes - into);
    if (!sa_connection_parse(connection)) return false;
    return bytes == room + beside;
}

void sa_connection_read(struct sa_connection *connection) {
    for (int reads = 0; reads < READS_MAX; reads++)
        if (connection->fd < 0 || connection->state == SA_AT_MEMORY || !read_once(connection)) break;
    if (connection->fd >= 0) note_partial(connection);
}

/* Ending. */

void sa_connection_discard(struct sa_connection *connection) {
    if (connection->state == SA_AT_START) return;
    if (!connection->spare) {
        connection->spare = sa_spares_take(&connection->mesh->spares, connection->size_bytes);
        if (!connection->spare) { /* the peer's message has no place any more */
            sa_connection_close(connection);
            return;
        }
    }
    connection->data = connection->spare->data;
    connection->running = NULL;
    connection->state = SA_AT_DATA;
    connection->is_discarded = true;
}

void sa_connection_close(struct sa_connection *connection) {
    if (connection->fd < 0) return;
    if (connection->can_send) stop_sending(connection);
    epoll_ctl(connection->mesh->poll, EPOLL_CTL_DEL, connection->fd, NULL); /* a fork may keep it open */
    shutdown(connection->fd, SHUT_RDWR);
    connection->fd = -1;
    connection->state = SA_AT_START;
    connection->at = connection->end = 0;
    sa_spares_give(&connection->mesh->spares, connection->spare);
    connection->spare = NULL;
    connection->running = NULL;
}

void sa_connection_free(struct sa_connection *connection) {
    sa_messages_free(connection->first);
    free(connection->spare);
    free(connection);
}
