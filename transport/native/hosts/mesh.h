/* A mesh carries one member's messages over TCP, and the executions that they belong to.

   A message of an execution that runs here causes nothing but its effect: it is received into its place, or added, and
   what it makes ready is sent. All others are the caller's, event by event. A single thread uses a mesh.

   On the wire: u8 kind (0 message, 1 the sender leaves) | u8 bytes of head | u16 0 | u32 bytes of data | head, data. The
   head of an execution's message: 36 bytes that say which call | i32 priority | u32 step | u32 segment. Big-endian. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transport/native/hosts/buffers.h"
#include "transport/native/hosts/credit_queue.h"
#include "transport/native/hosts/execution.h"
#include "transport/native/hosts/messages.h"

#define SA_CALL_BYTES 36u
#define SA_FLOWS_MAX 8u
#define SA_BESIDE_BYTES (1u << 14)

enum sa_mesh_counter {
    SA_MESH_TX_MESSAGES,
    SA_MESH_TX_BYTES,
    SA_MESH_RX_MESSAGES,
    SA_MESH_RX_BYTES,
    SA_MESH_SENDS,
    SA_MESH_RECEIVES,
    SA_MESH_SEND_WOULD_BLOCK,
    SA_MESH_LOST,
    SA_MESH_COUNTERS
};

/* WANTS_MEMORY: a message began to arrive; it goes on with sa_mesh_give. */
enum sa_mesh_event_kind { SA_MESH_RECEIVED, SA_MESH_SENT, SA_MESH_GONE, SA_MESH_WANTS_MEMORY };

/* Why a member is gone: it closed the connection or died, the error `number`, its word, or 8 bytes that begin no
   message, in `head`. */
enum sa_gone { SA_GONE_CLOSED, SA_GONE_ERROR, SA_GONE_LEFT, SA_GONE_NO_MESSAGE };

struct sa_mesh_event {
    uint32_t kind, member;
    uint32_t connection; /* head of RECEIVED and WANTS_MEMORY */
    uint32_t reason;     /* of GONE: enum sa_gone */
    int32_t number;
    uint32_t head_bytes;
    int64_t ticket; /* of SENT: of a message, or of an execution that is done */
    uint64_t size_bytes;
    uint8_t head[SA_HEAD_BYTES_MAX];
};

struct sa_mesh_outgoing {
    const uint8_t *data;
    uint64_t size_bytes;
    int64_t ticket;
    uint32_t to, flow;
    int32_t priority;
    uint32_t head_bytes;
    uint8_t head[SA_HEAD_BYTES_MAX];
};

/* An execution that a mesh runs. */
struct sa_mesh_execution {
    struct sa_execution *execution;
    int64_t ticket;
    int32_t priority;
    uint32_t flow;
    bool is_stopped;
    uint8_t head[SA_CALL_BYTES + 4]; /* of all its messages: call, priority */
};

struct sa_connection {
    struct sa_mesh *mesh;
    int fd; /* -1: ended */
    uint32_t member, flow, number, watched;
    bool can_send, is_unsent;
    struct sa_message *first, **last; /* to be sent */
    uint64_t sent_bytes;                   /* bytes of the first one that the kernel has */
    /* Coming in. */
    enum { SA_AT_START, SA_AT_DATA, SA_AT_MEMORY } state;
    struct sa_mesh_execution *running; /* whose message comes, or NULL */
    bool is_discarded;
    uint32_t node;
    uint32_t start_bytes;
    uint64_t size_bytes, filled;
    uint8_t *data;
    struct sa_spare *spare;
    uint32_t at, end; /* what `beside` has that was not looked at */
    uint8_t start[SA_START_BYTES_MAX];
    uint8_t beside[SA_BESIDE_BYTES]; /* what was received with a message, after it */
};

struct sa_mesh {
    uint32_t members, flows, connection_count;
    uint8_t classes[SA_FLOWS_MAX];
    uint64_t message_bytes_max;
    uint64_t *counters;
    int poll, wake, error;
    bool is_closing, is_woken, is_partial;
    struct sa_connection **connections; /* by flow, then member */
    uint32_t *by_place;                 /* member * flows + flow -> number, or UINT32_MAX */
    struct sa_mesh_execution **running;        /* `calls` has where in `head` their keys lie */
    uint64_t *calls;
    uint32_t running_count, running_room;
    struct sa_changed changed;
    struct sa_spares spares;
    struct sa_messages messages;
    struct sa_credit_queue outboxes[SA_FLOWS_MAX];
    struct sa_mesh_event *events, *reported;
    uint32_t event_count, event_room, taken_room;
};

/* wake: a non-blocking eventfd, the caller's. classes: `flows` of them, the most urgent first; of one flow, none may be
   given. counters: SA_MESH_COUNTERS numbers, the caller's. Returns NULL without memory or a descriptor. */
struct sa_mesh *sa_mesh_new(uint32_t members, uint32_t flows, const uint8_t *classes, uint64_t message_bytes_max,
                            int wake, uint64_t *counters);

/* A connection, of the more urgent flow first; it stays the caller's, who closes it after the mesh, or its member, is
   gone. 0, or -errno. */
int sa_mesh_add(struct sa_mesh *mesh, int fd, uint32_t member, uint32_t flow);

void sa_mesh_free(struct sa_mesh *mesh);

/* Take a message; its data must stay until the ticket comes back. At once, or when it is its turn and there is credit.
   0, or -ENOMEM. */
int sa_mesh_send(struct sa_mesh *mesh, const struct sa_mesh_outgoing *outgoing, bool waits_for_credit);

/* Begin an execution: it stays the caller's, and must outlive the event with its ticket, or the mesh. 0, or -ENOMEM. */
int sa_mesh_run(struct sa_mesh *mesh, struct sa_execution *execution, const uint8_t *head, int64_t ticket);

/* Stop all executions: nothing more is received into their arrays. Messages that they have queued are still sent. */
void sa_mesh_stop(struct sa_mesh *mesh);

/* Send, receive and run until there is an event or part of one, a wake-up (both: 1), or the time is over (0; negative:
   never). -errno: the machine refused something. credit_bytes: of each flow; negative: no bound. */
int sa_mesh_turn(struct sa_mesh *mesh, int64_t timeout_ns, int64_t credit_bytes);

/* The events so far; they stay where they are until the next call. */
uint32_t sa_mesh_take_events(struct sa_mesh *mesh, struct sa_mesh_event **events);

/* Memory of the size asked for, for the message that waits for it on a connection. 0, or -ENOMEM. */
int sa_mesh_give(struct sa_mesh *mesh, uint32_t connection, uint8_t *memory);

/* Send what is queued on connections, until the peers' kernels have it all, for `linger_ns` at most. */
void sa_mesh_linger(struct sa_mesh *mesh, int64_t linger_ns);

/* Bytes of queued messages that have left their queue and not the mesh. */
int64_t sa_mesh_below_bytes(const struct sa_mesh *mesh);

/* Between mesh.c, running.c and connection.c. */

/* Queue what executions have made ready, and report those that are done. */
void sa_mesh_collect(struct sa_mesh *mesh);

void sa_connection_queue(struct sa_connection *connection, struct sa_message *message);
void sa_connection_send(struct sa_connection *connection);
void sa_connection_read(struct sa_connection *connection);
/* Take what `beside` has; false if the connection is no more. */
bool sa_connection_parse(struct sa_connection *connection);
/* Arrivals for it are dropped from now on. */
void sa_connection_discard(struct sa_connection *connection);
void sa_connection_close(struct sa_connection *connection);
void sa_connection_free(struct sa_connection *connection);

/* A new event, zeroed; NULL: no memory, which `mesh->error` says from then on. */
struct sa_mesh_event *sa_mesh_event_new(struct sa_mesh *mesh, enum sa_mesh_event_kind kind);
/* A message has left, or never will. */
void sa_mesh_message_left(struct sa_mesh *mesh, struct sa_message *message);
/* The execution whose message begins so, if it runs here and awaits it; and its node. */
struct sa_mesh_execution *sa_mesh_find(struct sa_mesh *mesh, uint32_t member, const uint8_t *head, uint32_t head_bytes,
                                uint64_t size_bytes, uint32_t *node);
/* Nothing more comes by this connection, or by any of its member. */
void sa_mesh_ended(struct sa_mesh *mesh, struct sa_connection *connection, enum sa_gone reason, int32_t number);
void sa_mesh_lost(struct sa_mesh *mesh, struct sa_connection *connection, enum sa_gone reason, int32_t number);
