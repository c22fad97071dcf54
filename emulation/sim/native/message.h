/* Messages of members, and their memory: those without values are used again. */
#ifndef SWITCHAGG_SIM_MESSAGE_H
#define SWITCHAGG_SIM_MESSAGE_H

#include "transport/native/hosts/reliable.h"
#include "emulation/sim/native/sim.h"

struct sim_call;

/* A message of a call's node, or, without a call, of a party in Python, by number. The reliable one comes first, so
   that it is found by its connection. */
struct sim_message {
    struct sa_reliable_message reliable;
    struct sim_message *next; /* behind it in the same class; or idle */
    void *to;                 /* its connection */
    struct sim_call *call;
    uint64_t number;  /* of the node, or the party's */
    int64_t takes_ns; /* either host */
    uint32_t address; /* the receiver's, with the class in the upper bits */
    uint32_t holders;  /* atomic: its sender, and a receiver that hasn't come to it yet */
    uint8_t bytes[];  /* a copy of the values: it may have to be sent again */
};

/* values: NULL stands for zeros. Returns NULL without memory. */
struct sim_message *sim_message_new(struct sa_sim *sim, uint32_t head_bytes, const uint8_t *values, uint64_t size_bytes);

/* By a holder, in whose partition it is idle then. */
void sim_message_let_go(struct sa_sim *sim, struct sim_message *message);
void sim_messages_free(struct sa_sim *sim);

#endif
