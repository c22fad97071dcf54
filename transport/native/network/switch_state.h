/* The state of a switch (switch.c): its ports with their links, results not yet sent, and sends. */
#pragma once

#include "transport/native/network/switch.h"
#include "transport/native/network/timeline.h"
#include "transport/native/network/directory.h"
#include "switchagg/native/rule/wire.h"

#define ARENA_BYTES (4u * 65536u) /* results of one flush; with what is received it stays in the second-level cache */
#define ROWS_PER_FLUSH 64u        /* of one group, rounded down to whole sends: few, so that results leave early */
#define RESULTS_MAX 128u          /* of one flush */
#define GROUPS_MAX 16u
#define MESSAGES_MAX 64u
#define SEGMENTS_MAX 64u
#define SA_JOBS 65536u
#define GROUP_PORT 9u /* no one sees it */
#define ITERATIONS_PER_CHECK 8u /* iterations under load between two checks of the eventfd */

struct lane {
    struct sa_queue queue;
    uint64_t key;    /* key of the lane's faults */
    uint64_t number; /* number of the next packet */
    bool scheduled;  /* its queue's next departure is on the timeline */
};

struct port {
    struct sa_address address;
    uint32_t number;
    bool waiting; /* its outbox isn't empty, and it is in the ring */
    struct port *next_waiting;
    struct lane lanes[SA_DIRECTIONS];
    struct sa_queue outbox; /* what may be sent when the kernel has room */
};

/* Results for the same ports, of the same size and TOS: one bundle for each port. */
struct group {
    const uint32_t *ports;
    uint32_t count; /* ports */
    uint32_t size;
    uint32_t rows;
    uint32_t first; /* size of a frame */
    uint64_t streams; /* whose results it has, as bits */
    struct sa_hop *hop; /* whose tags they have, or NULL */
    uint8_t tos;
    struct sa_address address; /* of its multicast */
};

struct result {
    const uint8_t *bytes;
    uint64_t hash; /* of their tags */
    uint32_t group;
};

struct hops {
    struct sa_hop *children, *parent;
};

struct sa_switch {
    struct sa_switch_config config;
    uint64_t counters[SA_SWITCH_COUNTERS];
    struct sa_pool *pool;
    struct sa_timeline timeline;
    bool rated[SA_DIRECTIONS];
    bool faulty[SA_DIRECTIONS];
    bool active[SA_DIRECTIONS]; /* one of these */
    bool timed;                 /* some packets arrive late */
    int64_t grain_ns;
    /* ports, by number and by address */
    struct port **ports;
    uint32_t ports_size;
    struct sa_directory directory;
    /* results not yet sent */
    uint8_t *arena;
    uint32_t arena_used;
    uint8_t header_only[RESULTS_MAX][SA_HEADER_BYTES]; /* those without values, apart: each kind lies back to back */
    uint32_t header_only_used;
    uint32_t rows_per_flush;
    bool flush_due; /* a group's results fill their sends */
    uint32_t result_count;
    uint32_t group_count;
    struct result results[RESULTS_MAX];
    struct group groups[GROUPS_MAX];
    const uint8_t *frames[RESULTS_MAX]; /* in the order of their groups */
    uint64_t hashes[RESULTS_MAX];
    /* sends */
    uint32_t message_count;
    struct sa_udp_message messages[MESSAGES_MAX];
    struct port *addressees[MESSAGES_MAX]; /* NULL: a group's ports */
    const struct group *multicasts[MESSAGES_MAX];
    uint8_t tags[MESSAGES_MAX][ROWS_PER_FLUSH][SA_HOP_TAG_BYTES];
    bool multicast[SA_JOBS]; /* by job */
    struct hops hops[SA_JOBS];
    struct sa_packet *packets[MESSAGES_MAX][SEGMENTS_MAX];
    const uint8_t *gathered[MESSAGES_MAX][SEGMENTS_MAX];
    struct port *first_waiting; /* the ring: the next to send */
    struct port *last_waiting;
    bool full; /* the kernel had no room in this iteration */
    int64_t now_ns;
    int64_t flushed_ns; /* when outboxes were emptied last */
    int error;          /* -errno */
};
