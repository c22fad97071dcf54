/* The parts of members and their groups, for member.c and member_group.c. */
#ifndef SWITCHAGG_SIM_MEMBER_STATE_H
#define SWITCHAGG_SIM_MEMBER_STATE_H

#include "emulation/sim/native/costs.h"
#include "emulation/sim/native/member.h"
#include "emulation/sim/native/partitions.h"
#include "emulation/sim/native/peers.h"
#include "transport/native/hosts/credit_queue.h"

/* The key of a connection is the peer's address, with the class in the upper bits. */
struct outgoing {
    struct sim_member *member;
    uint32_t peer, connection;
    uint64_t full_at; /* `gives` when its window was found full */
    uint8_t repeats;  /* listed in its class's */
    struct sim_pace pace;
    struct sim_alarm alarm;
    struct sa_sender sender;
} __attribute__((aligned(64)));

struct incoming {
    struct sim_member *member;
    uint32_t peer, connection;
    struct sim_alarm alarm;
    struct sa_receiver receiver;
} __attribute__((aligned(64)));

/* A priority class; without classes there is one. Acknowledgements look at the first members. */
struct flow {
    struct sim_message *departing;
    uint32_t repeating_count;
    uint8_t has_uplink;
    struct sa_credit_queue queue;
    struct sim_uplink uplink;
    struct sim_message **departing_end;
    struct outgoing **repeating; /* by key, ascending */
    uint32_t repeating_room;
};

struct sim_group {
    struct sim_node node; /* only to be owned */
    struct sa_sim *sim;
    struct sim_group_facts facts;
    struct sim_failed failed, *failures; /* what Python knows; by partition */
    int64_t transfer_ns;
    uint64_t flow_bps;
};

/* In lines of cache: what any frame needs; what an answer needs; calls; a flow. */
struct sim_member {
    struct sim_node node;
    struct sim_link *link;
    struct outgoing *last_out;
    struct incoming *last_in;
    struct sa_sim *sim;
    struct sim_group *group;
    struct sim_failed *failed; /* in its partition */
    uint32_t member, number, address, strict, segment_bytes;
    uint8_t is_busy, pumps_again;
    struct sim_alarm timer;
    struct sim_party party;
    struct sim_peers out, in; /* struct outgoing, incoming */
    uint64_t gives, drop_checksum;
    int64_t deadline_ns; /* of a party in Python */
    struct sim_processor processor;
    struct sim_alarm paced;
    struct flow flows[] __attribute__((aligned(64)));
} __attribute__((aligned(64)));

/* A member's calls have failed: Python, and the members in other partitions, know now. */
void sim_member_failed(void *member);

/* As of a node: a call can't end before the messages that it lacks have come; of each connection one may be there but for its
   last frame, one frame is on its way, and what came beyond a gap may count at once. */
int64_t sim_member_quiet_ns(const struct sim_node *node, int64_t now_ns, uint64_t rate_bps);

#endif
