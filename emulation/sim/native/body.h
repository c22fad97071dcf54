/* A body travels on simulated links: one for each frame, shared by all places where it is at once (a broadcast result
   is one body in n queues), taken from a pool and given back by its last holder. */
#ifndef SWITCHAGG_SIM_BODY_H
#define SWITCHAGG_SIM_BODY_H

#include <stddef.h>
#include <stdint.h>

#define SIM_CELL_BYTES 64u /* bodies are whole cells; a header without values fits into one */
#define SIM_CELLS_MAX 1100u /* of a body with a full datagram */
#define SIM_AHEAD_BODIES 4u

/* AddressSanitizer doesn't know what of a pool's memory is whose: bodies that nobody holds, and what lies behind each, are
   hidden there. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define SIM_GAP_BYTES SIM_CELL_BYTES
#define sim_hide(from, bytes) __asan_poison_memory_region(from, bytes)
#define sim_show(from, bytes) __asan_unpoison_memory_region(from, bytes)
#else
#define SIM_GAP_BYTES 0u
#define sim_hide(from, bytes) ((void)0)
#define sim_show(from, bytes) ((void)0)
#endif

struct sim_body;

/* A kind of frame that is no packet of method `switch`. NULL: it is one, and `data` are its bytes on the wire. */
struct sim_body_kind {
    uint32_t (*digest)(const struct sim_body *body); /* CRC-32 of the bytes that it stands for, for traces: undamaged */
    void (*copied)(struct sim_body *body);           /* another body is the same now; or NULL */
    void (*end)(struct sim_body *body);              /* its last holder gives it back; or NULL */
    void (*damage)(struct sim_body *body);           /* of a frame without bits, which is damaged as a whole; or NULL */
    uint32_t has_bytes; /* `data` are its bytes, and not what it stands for (a segment: message, offset, length) */
    uint32_t is_for_python; /* a host in Python takes it, whoever else is at its address */
};

struct sim_body {
    const struct sim_body_kind *kind;
    uint32_t holders;
    uint32_t length;     /* of the datagram, in bytes */
    uint32_t wire_bytes; /* of the frame, as links count it */
    uint32_t held;       /* so many bytes are there: all, or the head of a frame without values */
    uint32_t flow;       /* number of the connection between its two addresses, or 0 */
    uint32_t flipped;    /* of a kind: what all flipped bits change in the CRC-32 of what it stands for */
    uint16_t burst;      /* the bits that flipped last; 0: none */
    uint16_t checksum;   /* of a damaged one: as its sender computed it (RFC 1071) */
    uint16_t cells;
    uint8_t data[];
};

/* The idle ones of a size, the latest last: listed, so that the next ones can be fetched before they are needed. */
struct sim_idle {
    struct sim_body **bodies;
    uint32_t count, room;
};

struct sim_pool {
    struct sim_idle idle[SIM_CELLS_MAX + 1]; /* by cells */
    uint8_t *block, *end;                     /* of memory not yet cut */
    void *blocks;                             /* all, linked through their first bytes */
    uint64_t bytes;
};

/* A new body has one holder, no kind and no damage, and room for so many bytes of data; NULL: no memory. */
struct sim_body *sim_body_cut(struct sim_pool *pool, uint32_t cells);
int sim_idle_grow(struct sim_idle *idle);
void sim_pool_free(struct sim_pool *pool);

static inline struct sim_body *sim_body_new(struct sim_pool *pool, uint32_t room_bytes) {
    uint32_t cells = ((uint32_t)offsetof(struct sim_body, data) + room_bytes + SIM_CELL_BYTES - 1) / SIM_CELL_BYTES;
    struct sim_idle *idle = &pool->idle[cells];
    if (!idle->count) return sim_body_cut(pool, cells);
    struct sim_body *body = idle->bodies[--idle->count];
    sim_show(body, cells * SIM_CELL_BYTES);
    if (idle->count > SIM_AHEAD_BODIES) __builtin_prefetch(idle->bodies[idle->count - SIM_AHEAD_BODIES], 1);
    body->kind = NULL;
    body->holders = 1;
    body->flow = 0;
    body->flipped = 0;
    body->burst = 0;
    return body;
}

static inline void sim_body_let_go(struct sim_pool *pool, struct sim_body *body) {
    if (--body->holders) return;
    if (body->kind && body->kind->end) body->kind->end(body);
    struct sim_idle *idle = &pool->idle[body->cells];
    if (idle->count == idle->room && sim_idle_grow(idle)) return; /* it is freed with the pool */
    idle->bodies[idle->count++] = body;
    sim_hide(body, body->cells * SIM_CELL_BYTES);
}

/* The body, if nobody else holds it, else a copy, with one holder of the original less; NULL: no memory. */
struct sim_body *sim_body_own(struct sim_pool *pool, struct sim_body *body);

/* Flip a burst of bits, in a body of one's own. */
void sim_body_damage(struct sim_body *body, uint16_t burst, uint32_t first_bit);

/* Whether a receiver's checksum finds the damage. Without its bytes: always, as it does of any one burst of at most 15 bits. */
int sim_body_fails(const struct sim_body *body);
static inline int sim_body_is_broken(const struct sim_body *body) { return body->burst && sim_body_fails(body); }

#endif
