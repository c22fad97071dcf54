#include "emulation/sim/native/watch.h"

#include <stdlib.h>
#include <string.h>

#define PLACES_FIRST 16u
#define HASH 0x9e3779b97f4a7c15ull

struct sim_watch {
    struct sim_node node; /* only to be owned */
    struct sim_link *link;
    sim_action act; /* what happens to frames then */
    void *object;
    sim_look look;
    uint64_t since; /* frames with later numbers count */
    struct sim_counted *places; /* open addressing */
    struct sim_counted *snapshot;
    uint32_t room, count;
};

static struct sim_counted *place_of(const struct sim_watch *watch, struct sim_counted key) {
    uint64_t hash = (((uint64_t)(uint32_t)key.job << 32 | key.sender) * HASH ^ key.flow) * HASH;
    for (uint32_t at = (uint32_t)(hash >> 40);; at++) {
        struct sim_counted *place = &watch->places[at & (watch->room - 1)];
        if (!place->used || (place->job == key.job && place->sender == key.sender && place->flow == key.flow)) return place;
    }
}

static int grow(struct sim_watch *watch) {
    struct sim_watch larger = *watch;
    larger.room = 2 * watch->room;
    larger.places = calloc(larger.room, sizeof *larger.places);
    struct sim_counted *snapshot = realloc(watch->snapshot, larger.room * sizeof *snapshot);
    if (snapshot) larger.snapshot = watch->snapshot = snapshot;
    if (!larger.places || !snapshot) {
        free(larger.places);
        return -1;
    }
    for (uint32_t i = 0; i < watch->room; i++)
        if (watch->places[i].used) *place_of(&larger, watch->places[i]) = watch->places[i];
    free(watch->places);
    *watch = larger;
    return 0;
}

static void look(void *object, const struct sim_entry *entry, uint32_t step) {
    const struct sim_watch *watch = object;
    if (watch->look) watch->look(watch->object, entry, step);
}

static void add(struct sim_watch *watch, const struct sim_body *body, uint32_t sender) {
    struct sim_counted key = {.job = -1, .sender = sender, .flow = body->flow, .used = 1};
    if (!body->kind) key = (struct sim_counted){.job = body->data[4] << 8 | body->data[5], .used = 1};
    struct sim_counted *place = place_of(watch, key);
    if (!place->used) {
        *place = key;
        watch->count++;
    }
    place->bytes += body->wire_bytes;
    if (2 * watch->count > watch->room && grow(watch)) watch->link->sim->queue.lacking = 1;
}

static void count(void *object, struct sim_body *body, uint32_t sender, uint32_t to) {
    struct sim_watch *watch = object;
    if (watch->link->end->sequence > watch->since) add(watch, body, sender);
    watch->act(watch->object, body, sender, to);
}

uint32_t sa_sim_watched(struct sim_watch *watch, const struct sim_counted **counted) {
    uint32_t total = 0;
    for (uint32_t i = 0; i < watch->room; i++)
        if (watch->places[i].used) watch->snapshot[total++] = watch->places[i];
    memset(watch->places, 0, watch->room * sizeof *watch->places);
    watch->count = 0;
    *counted = watch->snapshot;
    return total;
}

static void watch_free(struct sim_node *node) {
    struct sim_watch *watch = (struct sim_watch *)node;
    free(watch->places);
    free(watch->snapshot);
    free(watch);
}

struct sim_watch *sa_sim_watch(struct sim_link *link) {
    struct sim_watch *watch = calloc(1, sizeof *watch);
    if (!watch) return NULL;
    watch->node.free = watch_free;
    sim_own(link->sim, &watch->node);
    watch->link = link;
    watch->act = link->lane.act;
    watch->object = link->lane.object;
    watch->look = link->lane.look;
    watch->room = PLACES_FIRST;
    watch->places = calloc(PLACES_FIRST, sizeof *watch->places);
    watch->snapshot = calloc(PLACES_FIRST, sizeof *watch->snapshot);
    if (!watch->places || !watch->snapshot) return NULL;
    watch->since = link->sim->queue.sequence;
    sim_link_lead_to(link, count, watch, look);
    return watch;
}
