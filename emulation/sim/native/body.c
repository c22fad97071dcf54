#include "emulation/sim/native/body.h"

#include <stdlib.h>
#include <string.h>

#include "transport/native/roce/roce_crc.h"

#define BLOCK_BYTES (1u << 20)

struct sim_body *sim_body_cut(struct sim_pool *pool, uint32_t cells) {
    uint32_t bytes = cells * SIM_CELL_BYTES;
    if ((size_t)(pool->end - pool->block) < bytes + SIM_GAP_BYTES) {
        uint8_t *block = aligned_alloc(SIM_CELL_BYTES, BLOCK_BYTES);
        if (!block) return NULL;
        *(void **)(void *)block = pool->blocks;
        pool->blocks = block;
        pool->block = block + SIM_CELL_BYTES;
        pool->end = block + BLOCK_BYTES;
        pool->bytes += BLOCK_BYTES;
    }
    struct sim_body *body = (struct sim_body *)(void *)pool->block;
    sim_hide(pool->block + bytes, SIM_GAP_BYTES);
    pool->block += bytes + SIM_GAP_BYTES;
    *body = (struct sim_body){.holders = 1, .cells = (uint16_t)cells};
    return body;
}

int sim_idle_grow(struct sim_idle *idle) {
    uint32_t room = idle->room ? 2 * idle->room : 64;
    struct sim_body **bodies = realloc(idle->bodies, room * sizeof *bodies);
    if (!bodies) return -1;
    idle->bodies = bodies;
    idle->room = room;
    return 0;
}

void sim_pool_free(struct sim_pool *pool) {
    for (uint32_t cells = 0; cells <= SIM_CELLS_MAX; cells++) free(pool->idle[cells].bodies);
    for (void *block = pool->blocks, *next; block; block = next) {
        next = *(void **)block;
        free(block);
    }
}

struct sim_body *sim_body_own(struct sim_pool *pool, struct sim_body *body) {
    if (body->holders == 1) return body;
    struct sim_body *copy = sim_body_new(pool, body->held);
    if (!copy) return NULL;
    uint16_t cells = copy->cells;
    memcpy(copy, body, offsetof(struct sim_body, data) + body->held);
    copy->cells = cells;
    copy->holders = 1;
    body->holders--;
    if (copy->kind && copy->kind->copied) copy->kind->copied(copy);
    return copy;
}

/* The 16-bit ones'-complement sum of RFC 1071; an odd byte counts as if a zero followed. */
static uint16_t checksum(const struct sim_body *body) {
    uint64_t total = 0;
    for (uint32_t i = 0; i + 1 < body->length; i += 2) total += (uint32_t)body->data[i] << 8 | body->data[i + 1];
    if (body->length % 2) total += (uint32_t)body->data[body->length - 1] << 8;
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return (uint16_t)~total;
}

static int is_bytes(const struct sim_body *body) { return !body->kind || body->kind->has_bytes; }

static int has_bytes(const struct sim_body *body) { return is_bytes(body) && body->held == body->length; }

static void flip(uint8_t *bytes, uint32_t held, uint32_t length, uint16_t burst, uint32_t first_bit) {
    for (uint32_t i = 0; burst >> i; i++) {
        uint32_t bit = first_bit + i, at = length - 1 - bit / 8;
        if (at < held) bytes[at] ^= (uint8_t)((burst >> i & 1u) << bit % 8);
    }
}

/* A CRC is linear, but for what zeros have. */
static uint32_t crc_of_flips(uint32_t length, uint16_t burst, uint32_t first_bit) {
    uint8_t *bytes = calloc(1, length);
    if (!bytes) return 0;
    uint32_t zeros = sa_crc32(0, bytes, length);
    flip(bytes, length, length, burst, first_bit);
    uint32_t crc = zeros ^ sa_crc32(0, bytes, length);
    free(bytes);
    return crc;
}

void sim_body_damage(struct sim_body *body, uint16_t burst, uint32_t first_bit) {
    if (body->kind && body->kind->damage) {
        body->kind->damage(body);
        return;
    }
    if (!body->burst && has_bytes(body)) body->checksum = checksum(body);
    body->burst = burst;
    if (is_bytes(body))
        flip(body->data, body->held, body->length, burst, first_bit);
    else
        body->flipped ^= crc_of_flips(body->length, burst, first_bit);
}

int sim_body_fails(const struct sim_body *body) { return !has_bytes(body) || checksum(body) != body->checksum; }
