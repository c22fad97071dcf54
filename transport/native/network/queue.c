/* See queue.h. */
#include "transport/native/network/queue.h"

#include <stdlib.h>
#include <string.h>

#include "switchagg/native/abi.h"

#define BIT_NS_PER_BYTE 8000000000ull /* 8 bits in units of 1/rate nanoseconds */
#define ECN_MASK 3u
#define ECN_CE 3u

/* There are as many buffers as packets: a packet without a buffer of its own shares one. */
struct sa_pool {
    struct sa_packet *packets;
    uint8_t *buffers;
    size_t stride;
    uint32_t capacity;
    uint32_t buffer_bytes;
    uint32_t packets_begun; /* those from here on were never used: their pages are untouched */
    uint32_t buffers_begun;
    uint32_t used;
    struct sa_packet *free_packets; /* last in, first out: it is still in the cache */
    struct sa_buffer *free_buffers;
};

/* ---- the pool */

SA_EXPORT struct sa_pool *sa_pool_new(uint32_t packets, uint32_t buffer_bytes) {
    struct sa_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->stride = (sizeof(struct sa_buffer) + (size_t)buffer_bytes + 63u) / 64u * 64u;
    pool->capacity = packets;
    pool->buffer_bytes = buffer_bytes;
    pool->packets = calloc(packets, sizeof *pool->packets);
    pool->buffers = calloc(packets, pool->stride);
    if (!pool->packets || !pool->buffers) {
        sa_pool_free(pool);
        return NULL;
    }
    return pool;
}

SA_EXPORT void sa_pool_free(struct sa_pool *pool) {
    if (!pool) return;
    free(pool->packets);
    free(pool->buffers);
    free(pool);
}

uint32_t sa_pool_buffer_bytes(const struct sa_pool *pool) { return pool->buffer_bytes; }

SA_EXPORT uint32_t sa_pool_used(const struct sa_pool *pool) { return pool->used; }

static struct sa_packet *take_packet(struct sa_pool *pool) {
    struct sa_packet *packet = pool->free_packets;
    if (packet)
        pool->free_packets = packet->next;
    else if (pool->packets_begun < pool->capacity)
        packet = &pool->packets[pool->packets_begun++];
    else
        return NULL;
    pool->used++;
    return packet;
}

/* Never fails after take_packet: at most as many buffers are in use as packets. */
static struct sa_buffer *take_buffer(struct sa_pool *pool) {
    struct sa_buffer *buffer = pool->free_buffers;
    if (buffer)
        pool->free_buffers = buffer->next;
    else
        buffer = (struct sa_buffer *)(void *)(pool->buffers + pool->stride * pool->buffers_begun++);
    return buffer;
}

SA_EXPORT struct sa_packet *sa_pool_take(struct sa_pool *pool, const uint8_t *bytes, uint32_t size, uint8_t tos) {
    struct sa_packet *packet = take_packet(pool);
    if (!packet) return NULL;
    struct sa_buffer *buffer = take_buffer(pool);
    buffer->references = 1;
    buffer->size = size;
    if (bytes) memcpy(buffer->bytes, bytes, size);
    *packet = (struct sa_packet){.buffer = buffer, .tos = tos};
    return packet;
}

SA_EXPORT struct sa_packet *sa_pool_share(struct sa_pool *pool, const struct sa_packet *packet) {
    struct sa_packet *copy = take_packet(pool);
    if (!copy) return NULL;
    *copy = *packet;
    copy->next = NULL;
    copy->buffer->references++;
    return copy;
}

SA_EXPORT void sa_pool_give(struct sa_pool *pool, struct sa_packet *packet) {
    struct sa_buffer *buffer = packet->buffer;
    if (!--buffer->references) {
        buffer->next = pool->free_buffers;
        pool->free_buffers = buffer;
    }
    packet->next = pool->free_packets;
    pool->free_packets = packet;
    pool->used--;
}

/* ---- the queue */

SA_EXPORT void sa_queue_init(struct sa_queue *queue, const struct sa_queue_config *config) {
    memset(queue, 0, sizeof *queue);
    queue->config = *config;
}

static uint64_t framed(const struct sa_queue *queue, const struct sa_packet *packet) {
    return (uint64_t)packet->buffer->size + queue->config.framing_bytes;
}

static void append(struct sa_queue *queue, struct sa_packet *packet) {
    uint32_t class = sa_class(packet->tos);
    packet->next = NULL;
    if (queue->occupied >> class & 1u)
        queue->tails[class]->next = packet;
    else
        queue->heads[class] = packet;
    queue->tails[class] = packet;
    queue->occupied |= 1u << class;
}

/* Returns the first packet of the most urgent class, or NULL. */
static struct sa_packet *take_first(struct sa_queue *queue) {
    if (!queue->occupied) return NULL;
    uint32_t class = 31u - (uint32_t)__builtin_clz(queue->occupied);
    struct sa_packet *packet = queue->heads[class];
    queue->heads[class] = packet->next;
    if (!packet->next) queue->occupied &= ~(1u << class);
    return packet;
}

/* Put the next packet, if any, on the wire, which is idle since free_ns + free_part / rate. */
static void serve(struct sa_queue *queue) {
    struct sa_packet *packet = take_first(queue);
    queue->serving = packet;
    if (!packet) return;
    uint64_t rate = queue->config.rate_bps;
    uint32_t bytes = (uint32_t)framed(queue, packet);
    if (bytes != queue->costed) {
        queue->costed = bytes;
        queue->cost_ns = (int64_t)(bytes * BIT_NS_PER_BYTE / rate);
        queue->cost_part = bytes * BIT_NS_PER_BYTE % rate;
    }
    queue->free_ns += queue->cost_ns;
    queue->free_part += queue->cost_part;
    if (queue->free_part >= rate) {
        queue->free_ns++;
        queue->free_part -= rate;
    }
}

SA_EXPORT enum sa_enqueued sa_queue_enqueue(struct sa_queue *queue, struct sa_packet *packet, int64_t now_ns) {
    uint64_t bytes = framed(queue, packet), *class_bytes = &queue->class_bytes[sa_class(packet->tos)];
    if (*class_bytes + bytes > queue->config.limit_bytes) return SA_QUEUE_FULL;
    uint32_t ecn = packet->tos & ECN_MASK;
    bool mark = queue->held_bytes > queue->config.ecn_threshold_bytes && ecn && ecn != ECN_CE;
    if (mark) {
        packet->tos |= ECN_CE;
        queue->marked++;
    }
    *class_bytes += bytes;
    queue->held_bytes += bytes;
    queue->held_packets++;
    append(queue, packet);
    if (queue->config.rate_bps && !queue->serving) {
        if (queue->free_ns < now_ns) { /* else it becomes idle within this nanosecond */
            queue->free_ns = now_ns;
            queue->free_part = 0;
        }
        serve(queue);
    }
    return mark ? SA_QUEUED_MARKED : SA_QUEUED;
}

SA_EXPORT int64_t sa_queue_departure_ns(const struct sa_queue *queue) {
    if (!queue->config.rate_bps) return queue->held_packets ? 0 : SA_NEVER;
    if (!queue->serving) return SA_NEVER;
    return queue->free_ns + (queue->free_part ? 1 : 0);
}

SA_EXPORT struct sa_packet *sa_queue_depart(struct sa_queue *queue, int64_t now_ns) {
    struct sa_packet *packet = queue->serving;
    if (!queue->config.rate_bps) {
        packet = take_first(queue);
        if (!packet) return NULL;
    } else {
        if (!packet || sa_queue_departure_ns(queue) > now_ns) return NULL;
        serve(queue);
    }
    queue->class_bytes[sa_class(packet->tos)] -= framed(queue, packet);
    queue->held_bytes -= framed(queue, packet);
    queue->held_packets--;
    return packet;
}

SA_EXPORT void sa_queue_put_back(struct sa_queue *queue, struct sa_packet *packet) {
    uint32_t class = sa_class(packet->tos);
    packet->next = queue->occupied >> class & 1u ? queue->heads[class] : NULL;
    if (!packet->next) queue->tails[class] = packet;
    queue->heads[class] = packet;
    queue->occupied |= 1u << class;
    queue->class_bytes[class] += framed(queue, packet);
    queue->held_bytes += framed(queue, packet);
    queue->held_packets++;
}

SA_EXPORT void sa_queue_clear(struct sa_queue *queue, struct sa_pool *pool) {
    struct sa_packet *packet = queue->serving;
    if (packet) sa_pool_give(pool, packet);
    while ((packet = take_first(queue))) sa_pool_give(pool, packet);
    sa_queue_init(queue, &(struct sa_queue_config){.rate_bps = queue->config.rate_bps,
                                                   .limit_bytes = queue->config.limit_bytes,
                                                   .ecn_threshold_bytes = queue->config.ecn_threshold_bytes,
                                                   .framing_bytes = queue->config.framing_bytes});
}
