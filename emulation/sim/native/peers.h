/* A member's items for its peers, by key: open addressing, nothing is taken out. */
#ifndef SWITCHAGG_SIM_PEERS_H
#define SWITCHAGG_SIM_PEERS_H

#include <stdint.h>

struct sim_peers {
    void **items; /* `room` of them, NULL: free; freed by whoever has the table */
    uint32_t *keys;
    uint32_t room, count;
};

/* NULL: it isn't there. */
void *sim_peers_find(const struct sim_peers *peers, uint32_t key);

/* A key that isn't there. 0, or -ENOMEM. */
int sim_peers_add(struct sim_peers *peers, uint32_t key, void *item);

#endif
