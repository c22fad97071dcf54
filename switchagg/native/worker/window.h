/* The window of a stream at a worker says which chunks may be sent, which are lost, when to retransmit (W2, W3, W6 to
   W9, G6 and G7); step for step as switchagg/window.py. The window's lists link its slots, each of which
   is in one list at most, so that memory is fixed at the start. Chunk numbers are unwrapped. */
#pragma once

#include "switchagg/native/worker/call.h"
#include "switchagg/native/worker/endpoint.h"
#include "switchagg/native/worker/timeout.h"

#define SA_PROBES 4u
#define SA_OVERTAKEN 4u
#define SA_NO_SLOT UINT32_MAX
#define SA_FRACTION_BITS 16u
#define SA_GAIN_SHIFT 4u /* RFC 8257: g = 1/16 */

/* An event that waits to be taken; a member of the call or window that it reports on. */
struct sa_waiting_event {
    struct sa_waiting_event *next;
    struct sa_event event;
};

/* A submitted call: chunks base ... end - 1 of the stream, `missing` of them without a result. `waiting` comes first,
   so that the event of a call's end is the call. `describes`: the call after it, of which it is the description or the
   head (W12, W16). */
struct sa_running {
    struct sa_waiting_event waiting;
    struct sa_running *before, *after;
    uint64_t base, end, missing;
    uint64_t bytes; /* of this block of memory */
    struct sa_running *describes;
    struct sa_call call;
};

enum sa_slot_state { SA_IS_FREE, SA_IN_FLIGHT, SA_TO_RESEND };

/* Whether a chunk's result was wrong, and the chunk is to be sent again, or was (V7). */
enum sa_asking { SA_NOT_ASKED, SA_TO_ASK, SA_ASKED };

/* A slot of the range has its chunk in flight, or the one that it takes next. */
struct sa_slot {
    uint64_t chunk;
    uint64_t transmission; /* of the chunk's latest frame */
    uint64_t first_transmission;
    int64_t sent_ns;
    struct sa_running *running;
    uint32_t kind;          /* of the chunk's packets, without flags; of a free slot after sa_window_peek */
    uint32_t before, after; /* neighbours in the list of its state */
    uint8_t state;
    uint8_t first;   /* the last transmission was the chunk's first */
    uint8_t version; /* of the chunk (W2) */
    uint8_t asked;   /* enum sa_asking */
};

struct sa_list {
    uint32_t head, tail;
};

/* How much of a window may be in flight (G6). */
struct sa_congestion {
    uint32_t followed; /* 0: the job has no congestion control, and nothing of this is used */
    uint64_t window, most; /* in chunks, with SA_FRACTION_BITS after the point */
    uint32_t least_alpha;  /* 0: the window grows by 1, else as much more slowly as it is cut less */
    uint32_t alpha;        /* the part of results that was marked, of 1 << SA_FRACTION_BITS */
    uint32_t round, results, marks; /* results that make a round, 0 before the first mark, and what came in this one */
    uint32_t hold; /* results that answer what was sent before the last cut */
};

struct sa_partial_slot;

struct sa_window {
    uint32_t stream, first_slot, window;
    int32_t priority;
    uint32_t failed;
    uint32_t differs; /* another worker describes a call differently: no later one is complete (W12) */
    uint32_t timeouts; /* in a row, without any result */
    uint32_t doublings; /* of the timeout, while no first transmission could tell a longer round trip (W7) */
    uint32_t unsampled; /* timeouts that resent all in flight, and of which nothing tells whether they came too early */
    struct sa_slot *slots;
    struct sa_list lists[3]; /* SA_IN_FLIGHT by transmission; SA_TO_RESEND in the order of marking */

    /* Free slots by the chunk they take next: an ascending ring, and a heap for what came out of order. */
    uint32_t *ring, *heap;
    uint32_t ring_at, ring_count, heap_count;
    uint32_t reserve; /* so many stay free because of congestion (G7) */
    uint32_t to_mark; /* so many new chunks will say that a result met congestion (G8) */
    struct sa_congestion congestion;

    struct sa_running *running, *last; /* in the order of submission */
    struct sa_running *cursor;         /* the call that sent last */
    struct sa_running *unready;        /* the first that isn't ready for all its chunks */
    uint64_t complete;                 /* running calls without a missing chunk */
    uint64_t end;                      /* chunks submitted so far */
    uint64_t limit;                    /* chunks below may be sent (W4) */
    uint64_t transmissions;
    uint64_t newest[SA_OVERTAKEN]; /* answered first transmissions plus 1, the least one first: evidence of loss (W8) */

    struct sa_timeout own_timeout; /* W7 */
    struct sa_timeout *timeout; /* that of the first stream of this priority (W7) */
    int64_t rtt_ns;
    int64_t timer_start_ns;  /* the last result or timeout */
    uint32_t sampled;        /* rtt_ns has a sample not yet taken into account */
    uint64_t before_timeout; /* transmissions below were sent before the last timeout */
    uint32_t recovering;     /* from a timeout until a first transmission that came before it is answered */
    uint32_t certain;        /* chunks are lost: the timeout before the last one wasn't too early */
    uint32_t *lowest;        /* slots in flight at the last timeout, by chunk; those before lowest_at are done */
    uint32_t lowest_at, lowest_count;
    uint32_t resend_due;     /* chunks to resend because of results of retransmissions in this bundle */
    uint32_t touched;        /* by the bundle that is being received */
    uint32_t in_bundle;           /* in the bundle that is being built */
    struct sa_partial_slot *partial; /* of each slot, in a job with partial sums; else NULL */
    uint64_t early;                  /* results that no call has taken (Q7) */
    uint64_t early_chunks;            /* so many of the next chunks have their results; atomic */
    uint64_t wrong; /* the first chunk whose sum was wrong for good (V7), plus 1; 0: none */
    uint32_t wrong_kind; /* of its event */
    struct sa_waiting_event failure;
};

/* The class of a stream's priority (W10). */
static inline uint32_t sa_class_of(int32_t priority) {
    return priority < 0 ? 0 : priority < (int32_t)SA_CLASSES ? (uint32_t)priority : SA_CLASSES - 1;
}

/* windows: those of all streams, of which those before this one are initialised. Returns 0, or -1 without memory. */
int sa_window_init(struct sa_window *windows, const struct sa_job *job, uint32_t stream);
void sa_window_end(struct sa_window *window);
uint64_t sa_window_bytes(const struct sa_window *window);

/* Go on as if all chunks below `chunk` had been answered, with nothing submitted yet. It exists for tests. */
void sa_window_start_at(struct sa_window *window, uint64_t chunk);

/* Append a call, with at least one chunk unless it is described; its `call` is set. */
void sa_window_submit(struct sa_window *window, struct sa_running *running);

/* See sa_endpoint_held; 0: no such call is running. */
int sa_window_held(const struct sa_window *window, uint64_t call, uint8_t *held, uint64_t rows);

/* The slot of the next frame, with its `kind`; SA_NO_SLOT if nothing may be sent. */
uint32_t sa_window_peek(struct sa_window *window);

/* The next frame, of the slot that sa_window_peek gave, counts as sent now. The slot's `first` is 0 if the chunk was sent
   before. */
void sa_window_sent(struct sa_window *window, uint32_t offset, int64_t now_ns);

/* The result of the chunk in flight in a slot was wrong: it is sent again at once. Returns 0 if it was so before (V7). */
int sa_window_ask_again(struct sa_window *window, uint32_t offset);

/* The chunk in flight in a slot has its result, marked or not: the slot is free for the chunk one window later. */
void sa_window_answered(struct sa_window *window, uint32_t offset, int64_t now_ns, uint32_t marked);

/* A result of this chunk came that isn't awaited. If it was the slot's last one, it answers a copy that no loss called
   for. */
void sa_window_answered_again(struct sa_window *window, uint32_t offset, uint32_t chunk);

/* The next chunk of a free slot has its result without being sent: the one after it is the next (Q7). */
void sa_window_skip(struct sa_window *window, uint32_t offset);

/* A result of a chunk below the limit goes to its call, unless it is wrong: then 0 is returned. */
int sa_window_write_early(struct sa_window *window, uint64_t chunk, const uint8_t *payload);

/* The least chunk that a free slot takes next; there is a free slot. */
uint64_t sa_window_first_free(const struct sa_window *window);

/* Update the RTO, the limit and what counts as lost after a bundle of results. */
void sa_window_after_results(struct sa_window *window);

/* Take off the first call that is complete; NULL if there is none, or none before a description that is still missing
   results (W12). */
struct sa_running *sa_window_next_complete(struct sa_window *window);

/* This chunk's sum is wrong for good. kind: of the event, SA_WRONG_SUM or SA_WRONG_SUM_TOO_EARLY. */
static inline void sa_window_wrong(struct sa_window *window, uint64_t chunk, uint32_t kind) {
    if (window->wrong) return;
    window->wrong = chunk + 1;
    window->wrong_kind = kind;
}

/* Whether a description before this chunk has no result yet, which may say that other workers make other calls (W12). */
int sa_window_undescribed(const struct sa_window *window, uint64_t chunk);

/* It is known now how many chunks a call has (W16). */
void sa_window_decided(struct sa_window *window, struct sa_running *running);

/* When the window times out; -1 if nothing is in flight (W7). */
int64_t sa_window_deadline_ns(const struct sa_window *window);
void sa_window_time_out(struct sa_window *window, int64_t now_ns);

/* The slot of the lowest chunk in flight; there is one while there is a deadline. */
uint32_t sa_window_first_unanswered(const struct sa_window *window);
