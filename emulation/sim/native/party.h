/* The collective calls of one member, matched with the others' by key: as transport/collectives/collective_party.py, whose heads of
   messages these are. Where that one fails all calls, this one ends the simulation, with a reason. */
#ifndef SWITCHAGG_SIM_PARTY_H
#define SWITCHAGG_SIM_PARTY_H

#include "transport/native/hosts/execution.h"

#define SIM_CALL_BYTES 36u /* of a head: what describes the call */
#define SIM_KEY_AT 26u
#define SIM_KEY_BYTES 10u
#define SIM_NUMBERED_AT 27u
#define SIM_HEAD_BYTES 48u /* then i32 priority, u32 step, u32 segment */
#define SIM_EARLY_BYTES_MAX (1ull << 30)

enum sim_failure { SIM_FINE, SIM_CALLS_DIFFER, SIM_TOO_EARLY, SIM_STUCK, SIM_UNANSWERED, SIM_WRONG_MESSAGE,
                   SIM_ELSEWHERE };

/* Why a group's calls failed; SIM_ELSEWHERE: Python knows. peer: whom it concerns, or UINT32_MAX. stuck: what waits, of SIM_STUCK. */
struct sim_failed {
    uint32_t failure, member, peer;
    int64_t still_ns;
    const struct sa_execution *stuck;
    uint8_t local_call[SIM_CALL_BYTES], remote_call[SIM_CALL_BYTES];
};

/* A call of one member. array, scratch: NULL without values. */
struct sim_call_facts {
    uint8_t head[SIM_CALL_BYTES];
    int32_t priority;
    uint32_t number;
    uint32_t dtype, combine; /* enum sa_dtype, sa_combine */
    const struct sa_program *program;
    uint8_t *array, *scratch;
    sa_combine_elsewhere combine_elsewhere;
};

struct sim_call {
    struct sim_call *next, *next_ready;
    struct sa_execution *execution;
    int64_t moved_ns;
    uint64_t moves; /* of its messages, as far as moved_ns knows of them */
    int64_t arrived;        /* messages */
    uint32_t message_bytes; /* at least, of those that arrive: on the wire */
    int32_t priority;
    uint32_t number;
    uint8_t is_ready;
    uint8_t head[SIM_CALL_BYTES];
};

/* An early message of a call that isn't made yet. */
struct sim_held {
    struct sim_held *next;
    uint32_t sender;
    uint64_t size_bytes;
    uint8_t has_values, head[SIM_HEAD_BYTES];
    uint8_t data[];
};

struct sim_party {
    struct sim_call *calls, *ready, **ready_end; /* in progress, in order; those that may have messages */
    int64_t moved_ns, deadline_ns;
    struct sim_failed *failed; /* its group's */
    uint32_t finished_count, finished_room;
    uint32_t *finished; /* numbers of calls, until Python takes them */
    struct sim_held *early, **early_end; /* in order of arrival */
    uint64_t early_bytes;
    int64_t call_timeout_ns;
    uint32_t member;
};

/* Functions return 0; -ENOMEM; or -ECANCELED: the group has failed. */
void sim_party_begin(struct sim_party *party, uint32_t member, int64_t call_timeout_ns, struct sim_failed *failed);
void sim_party_end(struct sim_party *party);
int sim_party_submit(struct sim_party *party, const struct sim_call_facts *facts, int64_t now_ns);

/* data: NULL without values. It is copied. */
int sim_party_receive(struct sim_party *party, uint32_t sender, const uint8_t *head, const uint8_t *data,
                      uint64_t size_bytes, int64_t now_ns);

/* The message of a node has left. */
int sim_party_sent(struct sim_party *party, struct sim_call *call, uint32_t node);

/* The next message to be sent: its node, or -1. */
int64_t sim_party_next(struct sim_party *party, struct sim_call **call);
int sim_party_handle_timer(struct sim_party *party, int64_t now_ns);

static inline int64_t sim_party_deadline_ns(const struct sim_party *party) {
    return party->calls ? party->deadline_ns : -1;
}

/* Writes the head of a node's message. */
void sim_party_head(const struct sim_call *call, uint32_t node, uint8_t *head);

#endif
