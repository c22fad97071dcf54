/* A worker's endpoint of a job: W1 to W16, G5 to G8, Q6 to Q8 and F1 to F15, the verbs of
   switchagg/endpoint.py and partial_endpoint.py, frame for frame and counter for counter the same. A pure state machine:
   its inputs are packets and the time. Only new and submit allocate, and in jobs with partial sums receive does. A single thread at a time may use it. Times are nanoseconds from any origin, not negative, never
   decreasing. */
#pragma once

#include "switchagg/native/abi.h"
#include "switchagg/native/codecs/codec.h"
#include "switchagg/native/rule/job.h"
#include "switchagg/native/rule/tag.h"

struct sa_endpoint;

#define SA_WORDS 4u /* of a call's description */
#define SA_EACH_RANK UINT32_MAX /* as an owner: rank r owns shard r */

enum sa_event_kind { SA_NO_EVENT, SA_CALL_COMPLETED, SA_STREAM_FAILED, SA_CALLS_DIFFER, SA_WRONG_SUM, SA_WRONG_SUM_TOO_EARLY };

struct sa_event {
    uint32_t kind;
    uint32_t stream;
    uint64_t call;  /* SA_CALL_COMPLETED: what submit was given */
    uint32_t slot;  /* SA_STREAM_FAILED: the oldest unanswered chunk, SA_CALLS_DIFFER: the description's, SA_WRONG_SUM: whose
                       sum is wrong, or _TOO_EARLY, and came too early to be asked for again (V7 to V9); where it is */
    uint32_t version;
    uint64_t chunk; /* unwrapped */
    uint32_t timeouts;
    uint32_t rank;           /* SA_CALLS_DIFFER: who describes the call differently (W12), and both sides */
    uint32_t remote_words[SA_WORDS];
    uint32_t local_words[SA_WORDS];
};

/* A collective on `count` values at `data`, in place. codec: its number. Python's array_call has accepted codec, dtype
   and op. description: what all workers are told of it, none if the first word is zero (W12). */
struct sa_submission {
    uint64_t call; /* comes back in its event */
    uint64_t key;  /* of random rounding (F10) */
    void *data;
    float *residual; /* of sums of float32 that all ranks get: what of each value its code doesn't hold; or NULL */
    uint64_t count;
    uint64_t first_row, row_count; /* of each shard, what a part of a split call carries (W11); 0, 0: all */
    uint32_t stream;
    uint32_t codec;
    uint32_t dtype; /* enum sa_dtype */
    uint32_t op;
    uint32_t route;  /* SA_ROUTE_...: who gives the values, and who gets the results */
    uint32_t owner;  /* of all values; SA_EACH_RANK: each rank of its shard */
    uint32_t unit;   /* so many values lie in the same shard */
    uint32_t routed; /* 0: the switch knows no routes, so all send and get values (W15) */
    uint32_t run;    /* rows of a shard that follow each other where each rank owns one (W13) */
    uint32_t mean;   /* 1: of a partial sum, of floats that all ranks get: divided by the ranks in each chunk (Q6) */
    uint32_t description[SA_WORDS];
};

enum sa_endpoint_counter {
    SA_ENDPOINT_SENT,
    SA_ENDPOINT_RETRANSMITTED,
    SA_ENDPOINT_TIMEOUTS,
    SA_ENDPOINT_RESULTS,
    SA_ENDPOINT_DUPLICATES,
    SA_ENDPOINT_DROP_SHORT,
    SA_ENDPOINT_DROP_MAGIC,
    SA_ENDPOINT_DROP_WIRE_VERSION,
    SA_ENDPOINT_DROP_OP,
    SA_ENDPOINT_DROP_FLAGS,
    SA_ENDPOINT_DROP_LENGTH,
    SA_ENDPOINT_DROP_JOB,
    SA_ENDPOINT_DROP_GENERATION,
    SA_ENDPOINT_DROP_FOREIGN,
    SA_ENDPOINT_PREDICTED, /* small calls that took one round trip (W16), */
    SA_ENDPOINT_REPEATED,  /* and two */
    SA_ENDPOINT_MARKED,
    SA_ENDPOINT_EARLY, /* of partial sums (Q7): results that came before their chunks were sent, */
    SA_ENDPOINT_EARLY_REFUSED, /* and those for which there was no room */
    SA_ENDPOINT_ABSTAINED,
    SA_ENDPOINT_FINALISE_REQUESTS,
    SA_ENDPOINT_WRONG_SUMS, /* results that were not taken (V7) */
    SA_ENDPOINT_COUNTERS,
    SA_ENDPOINT_CHUNKS_OF = SA_ENDPOINT_COUNTERS, /* behind them, [m]: data chunks of partial sums with the values of m ranks */
    SA_ENDPOINT_ALL_COUNTERS = SA_ENDPOINT_CHUNKS_OF + SA_WORKERS_MAX + 1
};

/* wire_rank: the worker's index among what sends to its switch (H1). key: SA_KEY_BYTES, and behind
   them, of a job with secret sums, SA_MASK_KEY_BYTES; of the generation: all workers have it and the switch hasn't (V1, X1). Returns NULL without memory. */
struct sa_endpoint *sa_endpoint_new(const struct sa_job *job, uint32_t rank, uint32_t wire_rank, const uint8_t *key);
void sa_endpoint_free(struct sa_endpoint *endpoint);
uint32_t sa_endpoint_frame_bytes(const struct sa_endpoint *endpoint);

/* Submit a call: it is queued. The array must stay until the call's event, or until the endpoint is freed. 0, or -1: no
   memory, and nothing has changed. */
int sa_endpoint_submit(struct sa_endpoint *endpoint, const struct sa_submission *submission);

/* Write to `held`, for each of `rows` data rows of a submitted call whose event isn't taken, whether its result is in the
   call's array: 1, or 0, also for rows that this rank doesn't get. Returns 0, or -1: no such call is running. */
int sa_endpoint_held(const struct sa_endpoint *endpoint, uint64_t call, uint8_t *held, uint64_t rows);

/* Take `rows` datagrams of `size` bytes each, back to back. congested: they came marked CE (G8). */
void sa_endpoint_receive(struct sa_endpoint *endpoint, const uint8_t *bundle, uint64_t rows, uint32_t size,
                         int64_t now_ns, uint32_t congested);
void sa_endpoint_handle_timer(struct sa_endpoint *endpoint, int64_t now_ns);

/* Write up to `limit` frames to `out`, all of `*size` bytes, back to back; returns how many, until there are none. */
uint32_t sa_endpoint_frames_to_send(struct sa_endpoint *endpoint, int64_t now_ns, uint32_t limit, uint8_t *out,
                                    uint32_t *size);

#define SA_CLASSES 8u
#define SA_ANY_CLASS UINT32_MAX

/* The same, the i-th to places[i]: only those of streams of one priority class, if it isn't SA_ANY_CLASS. */
uint32_t sa_endpoint_frames_at(struct sa_endpoint *endpoint, int64_t now_ns, uint32_t limit, uint32_t class,
                               uint8_t *const *places, uint32_t *size);

/* Before anything is submitted, in a job without partial sums: calls have no values, and frames are headers without the payload that they speak of,
   both ways, whatever size is said: for simulations of what takes how long. The endpoint behaves as if all values were
   zeros, and workers described all calls alike. */
SA_EXPORT void sa_endpoint_leave_values(struct sa_endpoint *endpoint);

/* How many results must come before any submitted call can complete, at least; UINT64_MAX: there is no call. bytes: of such a
   datagram, at least. A stream may fail sooner. */
uint64_t sa_endpoint_lacks(const struct sa_endpoint *endpoint, uint32_t *bytes);

uint32_t sa_endpoint_has_event(const struct sa_endpoint *endpoint);

/* Take the oldest event not yet taken; returns its kind. */
uint32_t sa_endpoint_next_event(struct sa_endpoint *endpoint, struct sa_event *event);

/* Returns -1 if nothing is in flight. */
int64_t sa_endpoint_next_deadline_ns(const struct sa_endpoint *endpoint);

/* How many of the next chunks of a stream have their results, before a call of them is submitted (Q7). Any thread may
   call it. */
uint64_t sa_endpoint_early_chunks(const struct sa_endpoint *endpoint, uint32_t stream);

/* Whether the job has partial sums: results come, and are answered, also while no call is submitted. */
uint32_t sa_endpoint_is_partial(const struct sa_endpoint *endpoint);

/* Returns SA_ENDPOINT_ALL_COUNTERS numbers, which are valid as long as the endpoint. */
const uint64_t *sa_endpoint_counters(const struct sa_endpoint *endpoint);

/* Bytes the endpoint holds beyond the callers' arrays. */
uint64_t sa_endpoint_memory_bytes(const struct sa_endpoint *endpoint);

/* For tests near the wrap of chunk numbers: continue as if all chunks of a stream below `chunk` were answered,
   with nothing submitted yet. */
void sa_endpoint_start_at(struct sa_endpoint *endpoint, uint32_t stream, uint64_t chunk);
