/* Runs a dataflow program over an array: what has come and may be applied is applied, what is final may be sent. The
   same results, bit for bit, as tests/oracles/execution.py; compile.h compiles the programs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "transport/native/hosts/buffers.h"

enum sa_node_kind { SA_NODE_SEND, SA_NODE_COMBINE, SA_NODE_OVERWRITE, SA_NODE_LOCAL };

/* Where a message belongs. In the order of members, then steps, then segments. */
struct sa_label {
    uint32_t member, step, segment;
};

/* An entry per node, in elements. */
struct sa_program {
    uint32_t nodes, arriving, members, itemsize;
    uint64_t elements;                /* of the array; places from there on are scratch */
    const uint8_t *kinds;             /* enum sa_node_kind */
    const int64_t *lows, *highs;
    const int64_t *sources;           /* of SA_NODE_LOCAL */
    const struct sa_label *labels;    /* of SA_NODE_SEND: member is the receiver; others: UINT32_MAX */
    const int32_t *waits;             /* nodes that must be complete before */
    const uint32_t *after_first;      /* nodes + 1: where in `after` the nodes begin that wait for this one */
    const uint32_t *after;
    const struct sa_label *arrivals;  /* `arriving` of them, sorted: member is the sender */
    const uint32_t *arrival_nodes;
    const uint32_t *expected;         /* of each member: messages */
    uint32_t turn;                    /* not 0: all this is member 0's (sa_program_turned) */
};

/* Elements low ... high - 1. */
struct sa_range {
    int64_t low, high;
};

struct sa_range sa_program_turned_range(const struct sa_program *program, uint32_t node);

static inline struct sa_range sa_program_range(const struct sa_program *program, uint32_t node) {
    if (program->turn) return sa_program_turned_range(program, node);
    return (struct sa_range){program->lows[node], program->highs[node]};
}

/* Returns the member that member 0 calls by this number. */
static inline uint32_t sa_program_member(const struct sa_program *program, uint32_t member) {
    uint32_t turned = member + program->turn;
    return turned < program->members ? turned : turned - program->members;
}

static inline uint32_t sa_program_to(const struct sa_program *program, uint32_t node) {
    return sa_program_member(program, program->labels[node].member);
}

/* SA_COMBINE_ELSEWHERE: by the function that the execution has for it. */
enum sa_combine { SA_COMBINE_SUM, SA_COMBINE_MAX, SA_COMBINE_ELSEWHERE };

/* mine = mine combined with theirs, that many elements. dtype: the execution's, for the caller to know it by. */
typedef void (*sa_combine_elsewhere)(uint32_t dtype, uint8_t *target, const uint8_t *source, uint64_t count);

struct sa_execution {
    const struct sa_program *program;
    uint8_t *array, *scratch;  /* NULL: without values, only what waits for what */
    uint32_t dtype, combine;   /* enum sa_dtype, sa_combine; max: of integers. Unused without nodes that combine */
    sa_combine_elsewhere combine_elsewhere;
    uint32_t left;             /* nodes not complete */
    uint32_t ready_first, ready_end;
    uint64_t moves;            /* messages that came or left */
    int32_t *waits;            /* still; -1: the message has left */
    uint32_t *expected, *ready, *stack;
    uint8_t *flags;            /* enum sa_node_flag */
    struct sa_spare **held;    /* of each node; made when the first message comes too early */
    struct sa_spares *spares;  /* where messages' memory comes from, or NULL */
    struct sa_changed *changed; /* a mesh's list of executions with something to send, or done; NULL without mesh */
    struct sa_mesh_execution *running; /* what it is there */
    struct sa_execution *next_changed;
    bool is_listed;
};

struct sa_changed {
    struct sa_execution *first, **end;
};

/* ARRIVED: its message came. PLACED: its memory was given out. CLAIMED: it is being received by a mesh. READY: may be
   sent, not handed out. */
enum sa_node_flag { SA_ARRIVED = 1, SA_PLACED = 2, SA_CLAIMED = 4, SA_READY = 8 };

enum sa_unfit { SA_UNFIT_NONE, SA_UNFIT_UNEXPECTED, SA_UNFIT_TWICE, SA_UNFIT_SIZE };

/* program, array and scratch stay the caller's and must outlive it; the arrays are aligned to their elements unless they
   are combined elsewhere. combine_elsewhere: NULL where C combines. Returns NULL without memory. */
struct sa_execution *sa_execution_new(const struct sa_program *program, uint8_t *array, uint8_t *scratch,
                                      uint32_t dtype, uint32_t combine, sa_combine_elsewhere combine_elsewhere);
void sa_execution_free(struct sa_execution *execution);

/* Begin; the caller calls it once, before anything else. */
void sa_execution_start(struct sa_execution *execution);

/* The node of a message; -1: there is none. */
int64_t sa_execution_find(const struct sa_execution *execution, const struct sa_label *from);
uint64_t sa_execution_size_bytes(const struct sa_execution *execution, uint32_t node);
uint8_t *sa_execution_memory(const struct sa_execution *execution, uint32_t node);

/* Where a message that begins to arrive may lie at once: PLACED then; or NULL. */
uint8_t *sa_execution_place(struct sa_execution *execution, const struct sa_label *from, uint64_t size_bytes);

/* Whether a message of this node may be taken; it has the right size. */
static inline bool sa_execution_awaits(const struct sa_execution *execution, uint32_t node) {
    return !(execution->flags[node] & (SA_ARRIVED | SA_PLACED | SA_CLAIMED));
}

/* The message of a node that awaits one, or was placed, is there: in its place, or in `spare`, the execution's from now
   on. 0; -ENOMEM. */
int sa_execution_take(struct sa_execution *execution, uint32_t node, uint32_t sender, struct sa_spare *spare);

/* A message came; the data is applied, or copied where it came too early. enum sa_unfit, or -ENOMEM. */
int sa_execution_receive(struct sa_execution *execution, const struct sa_label *from, const uint8_t *data,
                         uint64_t size_bytes);

void sa_execution_sent(struct sa_execution *execution, uint32_t node);

/* The next message to be sent, or -1. */
int64_t sa_execution_next(struct sa_execution *execution);

/* Messages of a member still to come; nodes not complete; messages that came or left. */
uint32_t sa_execution_expects(const struct sa_execution *execution, uint32_t member);
uint32_t sa_execution_left(const struct sa_execution *execution);
uint64_t sa_execution_moves(const struct sa_execution *execution);

bool sa_execution_sends_left_to(const struct sa_execution *execution, uint32_t member);
bool sa_execution_leaving_to(const struct sa_execution *execution, uint32_t member);
