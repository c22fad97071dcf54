/* Switches: they forward every frame by its address, over one link or several, and give frames for themselves to a data
   plane. Their oracle is `OracleSwitch` of tests/oracles/oracle_network.py. */
#ifndef SWITCHAGG_SIM_FORWARD_H
#define SWITCHAGG_SIM_FORWARD_H

#include "switchagg/native/rule/plane.h"
#include "emulation/sim/native/link.h"

/* Chooses which of several links a flow takes, once for each flow: Python knows the names that it is hashed by. */
typedef uint32_t (*sim_choose)(uint32_t paths, uint32_t sender, uint32_t to, uint32_t flow);

struct sim_choice {
    uint64_t ends; /* sender and receiver, plus 1; 0: free */
    uint32_t flow, place;
};

struct sim_paths {
    struct sim_node node; /* only to be owned */
    struct sim_link **links;
    uint32_t count, turn;
    sim_choose choose; /* NULL: each frame takes the link with the shortest queue */
    uint32_t number;
    struct sim_choice *choices;
    uint32_t room, chosen;
};

/* The route to an address is one of both. */
struct sim_port {
    struct sim_link *link;
    struct sim_paths *paths;
};

struct sim_switch {
    struct sim_node node; /* only to be owned */
    uint64_t drop_checksum; /* Python reads it in place */
    struct sa_sim *sim;
    int64_t latency_ns;
    struct sim_port *ports;
    uint32_t port_count, port_room;
    struct sa_plane *plane;    /* what takes its packets is this, */
    struct sim_node *program; /* or, where it isn't NULL, a program in Python */
    uint32_t address, room_bytes; /* of its packets at most */
    struct sim_body *valued, *header_only; /* for the next results */
};

/* Send a packet of `length` bytes from a switch to the addresses `ports`, of which there is one at least. bits: of their `to`.
   It takes over the only hold on the body. */
void sim_switch_send(struct sim_switch *at, struct sim_body *body, uint32_t length, const uint32_t *ports,
                     uint32_t port_count, uint32_t bits);

SA_EXPORT struct sim_link *sa_sim_link(struct sa_sim *sim, const struct sim_link_facts *facts);
SA_EXPORT struct sim_switch *sa_sim_switch(struct sa_sim *sim, int64_t latency_ns);
SA_EXPORT struct sim_paths *sa_sim_paths(struct sa_sim *sim, struct sim_link *const *links, uint32_t count,
                                         sim_choose choose, uint32_t number);

/* Sets the receiver at a link's end: a switch, or, NULL, the hosts by the frames' addresses. */
SA_EXPORT void sa_sim_lead_to(struct sim_link *link, struct sim_switch *to);

SA_EXPORT void sa_sim_cut(struct sim_link *link, uint32_t is_cut);

/* Sets the route from a switch to its next address, by one of both. Returns 0, or -1 without memory. */
SA_EXPORT int sa_sim_route(struct sim_switch *at, struct sim_link *link, struct sim_paths *paths);
SA_EXPORT void sa_sim_aggregate(struct sim_switch *at, struct sa_plane *plane, uint32_t address, uint32_t room_bytes);

#endif
