/* The executions of a mesh: which message is whose, what they have to send, when they are done. See mesh.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"
#include "transport/native/hosts/mesh.h"

#define PLACE_BYTES 12u /* priority, step, segment */
#define LEAST_URGENT 7

static uint32_t read32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void write32(uint8_t *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* It matches `flow_of` in switchagg/priority.py. */
static uint32_t flow_of(const struct sa_mesh *mesh, int32_t priority) {
    int32_t kind = priority < 0 ? 0 : priority > LEAST_URGENT ? LEAST_URGENT : priority;
    for (uint32_t flow = 0; flow < mesh->flows; flow++)
        if (mesh->classes[flow] >= kind) return flow;
    return mesh->flows - 1;
}

/* Most calls differ in the last part of their 36 bytes. */
static uint64_t call_of(const uint8_t *head) {
    uint64_t key;
    memcpy(&key, head + SA_CALL_BYTES - sizeof key, sizeof key);
    return key;
}

SA_EXPORT int sa_mesh_run(struct sa_mesh *mesh, struct sa_execution *execution, const uint8_t *head, int64_t ticket) {
    if (mesh->running_count == mesh->running_room) {
        uint32_t room = mesh->running_room ? 2 * mesh->running_room : 16;
        struct sa_mesh_execution **running = realloc(mesh->running, room * sizeof *running);
        if (running) mesh->running = running;
        uint64_t *calls = realloc(mesh->calls, room * sizeof *calls);
        if (calls) mesh->calls = calls;
        if (!running || !calls) return -ENOMEM;
        mesh->running_room = room;
    }
    struct sa_mesh_execution *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return -ENOMEM;
    fresh->execution = execution;
    fresh->ticket = ticket;
    memcpy(fresh->head, head, sizeof fresh->head);
    fresh->priority = (int32_t)read32(head + SA_CALL_BYTES);
    fresh->flow = flow_of(mesh, fresh->priority);
    execution->changed = &mesh->changed;
    execution->spares = &mesh->spares;
    execution->running = fresh;
    mesh->calls[mesh->running_count] = call_of(head);
    mesh->running[mesh->running_count++] = fresh;
    return 0;
}

static void detach(struct sa_execution *execution) {
    execution->changed = NULL;
    execution->spares = NULL;
    execution->running = NULL;
}

SA_EXPORT void sa_mesh_stop(struct sa_mesh *mesh) {
    for (uint32_t i = 0; i < mesh->connection_count; i++)
        if (mesh->connections[i]->running) sa_connection_discard(mesh->connections[i]);
    for (struct sa_execution *execution = mesh->changed.first; execution; execution = execution->next_changed) execution->is_listed = false;
    mesh->changed = (struct sa_changed){NULL, &mesh->changed.first};
    for (uint32_t i = 0; i < mesh->running_count; i++) {
        if (!mesh->running[i]->is_stopped) detach(mesh->running[i]->execution);
        mesh->running[i]->is_stopped = true; /* it stays: what it has queued names it */
    }
}

struct sa_mesh_execution *sa_mesh_find(struct sa_mesh *mesh, uint32_t member, const uint8_t *head, uint32_t head_bytes,
                                uint64_t size_bytes, uint32_t *node) {
    if (head_bytes != SA_CALL_BYTES + PLACE_BYTES) return NULL;
    uint64_t call = call_of(head);
    for (uint32_t i = 0; i < mesh->running_count; i++) {
        if (mesh->calls[i] != call || mesh->running[i]->is_stopped) continue;
        struct sa_mesh_execution *running = mesh->running[i];
        struct sa_execution *execution = running->execution;
        if (memcmp(running->head, head, SA_CALL_BYTES)) continue;
        if (flow_of(mesh, (int32_t)read32(head + SA_CALL_BYTES)) != running->flow) return NULL;
        if (!sa_execution_expects(execution, member)) return NULL;
        struct sa_label from = {member, read32(head + SA_CALL_BYTES + 4), read32(head + SA_CALL_BYTES + 8)};
        int64_t place = sa_execution_find(execution, &from);
        if (place < 0 || !sa_execution_awaits(execution, (uint32_t)place)) return NULL;
        if (sa_execution_size_bytes(execution, (uint32_t)place) != size_bytes) return NULL;
        *node = (uint32_t)place;
        return running;
    }
    return NULL;
}

/* Queue one message of an execution. */
static int queue(struct sa_mesh *mesh, struct sa_mesh_execution *running, uint32_t node) {
    struct sa_execution *execution = running->execution;
    const struct sa_label *label = &execution->program->labels[node];
    uint64_t size_bytes = sa_execution_size_bytes(execution, node);
    struct sa_message *message = sa_messages_take(&mesh->messages, 0, SA_CALL_BYTES + PLACE_BYTES, size_bytes);
    if (!message) return -ENOMEM;
    message->running = running;
    message->ticket = node;
    message->data = sa_execution_memory(execution, node);
    message->to = sa_program_to(execution->program, node);
    message->flow = running->flow;
    uint8_t *head = message->start + SA_MESSAGE_HEADER_BYTES;
    memcpy(head, running->head, sizeof running->head);
    write32(head + SA_CALL_BYTES + 4, label->step);
    write32(head + SA_CALL_BYTES + 8, label->segment);
    int result = sa_credit_queue_push(&mesh->outboxes[message->flow],
                                      (struct sa_credit_waiting){.priority = running->priority, .item = message});
    if (result) sa_messages_give(&mesh->messages, message);
    return result;
}

static void finish(struct sa_mesh *mesh, struct sa_mesh_execution *running) {
    struct sa_mesh_event *event = sa_mesh_event_new(mesh, SA_MESH_SENT);
    if (event) event->ticket = running->ticket;
    detach(running->execution);
    uint32_t last = mesh->running_count - 1;
    for (uint32_t i = 0; i < last; i++) {
        if (mesh->running[i] != running) continue;
        mesh->running[i] = mesh->running[last];
        mesh->calls[i] = mesh->calls[last];
        break;
    }
    mesh->running_count = last;
    free(running);
}

void sa_mesh_collect(struct sa_mesh *mesh) {
    while (mesh->changed.first) {
        struct sa_execution *execution = mesh->changed.first;
        mesh->changed.first = execution->next_changed;
        if (!mesh->changed.first) mesh->changed.end = &mesh->changed.first;
        execution->is_listed = false;
        for (int64_t node; (node = sa_execution_next(execution)) >= 0;) {
            int result = queue(mesh, execution->running, (uint32_t)node);
            if (result) {
                mesh->error = result;
                return;
            }
        }
        if (!execution->left) finish(mesh, execution->running);
    }
}
