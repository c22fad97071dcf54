#include "emulation/sim/native/peers.h"

#include <errno.h>
#include <stdlib.h>

#define ROOM_FIRST 8u

static uint32_t place_of(const struct sim_peers *peers, uint32_t key) {
    uint32_t at = (key * 2654435761u) & (peers->room - 1);
    while (peers->items[at] && peers->keys[at] != key) at = (at + 1) & (peers->room - 1);
    return at;
}

static void put(struct sim_peers *peers, uint32_t key, void *item) {
    uint32_t place = place_of(peers, key);
    peers->items[place] = item;
    peers->keys[place] = key;
    peers->count++;
}

void *sim_peers_find(const struct sim_peers *peers, uint32_t key) {
    return peers->room ? peers->items[place_of(peers, key)] : NULL;
}

int sim_peers_add(struct sim_peers *peers, uint32_t key, void *item) {
    if (2 * peers->count >= peers->room) {
        struct sim_peers larger = {.room = peers->room ? 2 * peers->room : ROOM_FIRST};
        larger.items = calloc(larger.room, sizeof *larger.items + sizeof *larger.keys);
        if (!larger.items) return -ENOMEM;
        larger.keys = (uint32_t *)(larger.items + larger.room);
        for (uint32_t i = 0; i < peers->room; i++)
            if (peers->items[i]) put(&larger, peers->keys[i], peers->items[i]);
        free(peers->items);
        *peers = larger;
    }
    put(peers, key, item);
    return 0;
}
