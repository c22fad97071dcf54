/* What an endpoint does besides in a job with partial sums (Q7), as switchagg/partial_endpoint.py: it takes
   results before their chunks are sent, abstains, and asks to finalise. Results that came early take memory as they come,
   SA_RETAINED_BYTES at most; where there is no more, none is taken, and the other workers wait. */
#pragma once

#include "switchagg/native/rule/wire.h"
#include "switchagg/native/worker/window.h"

#define SA_RETAINED_BYTES (256ull << 20)

/* A result of a chunk that no call has taken. */
struct sa_early {
    struct sa_early *after; /* of the same slot */
    uint64_t chunk;
    uint8_t payload[];
};

/* Beside a slot of a window. */
struct sa_partial_slot {
    struct sa_partial_slot *before, *after; /* among those of which nobody has asked to finalise the chunk; or NULL */
    struct sa_window *window;
    int64_t close_ns; /* when that is to be asked */
    uint32_t closes;  /* it was asked: what is sent of the chunk again has CLOSE */
    struct sa_early *first, *last;
};

/* A header-only packet that is due: an abstention, or with SA_CLOSE a request to finalise. */
struct sa_due {
    struct sa_window *window;
    uint64_t chunk;
    uint32_t close;
};

struct sa_partial_sums {
    uint32_t presence; /* elements of a chunk that say whose values are in it (Q6); 0: the job has no partial sums */
    uint32_t presence_at, presence_bit; /* this rank's: the byte of a payload, and the bit in it */
    uint32_t payload_bytes;
    int64_t close_after_ns; /* 0: never */
    uint64_t early_bytes;   /* of payloads */
    struct sa_partial_slot closing; /* the ends of the list, in the order of close_ns */
    struct sa_due *due;
    uint32_t due_count, due_capacity;
    uint64_t *counters; /* the endpoint's */
};

/* windows: of the job, initialised; they get their `partial`. Returns 0, or -1 without memory. */
int sa_partial_init(struct sa_partial_sums *sums, const struct sa_job *job, uint32_t wire_rank,
                    struct sa_window *windows, uint64_t *counters);
void sa_partial_end(struct sa_partial_sums *sums, struct sa_window *windows, uint32_t streams);

/* A result with values and route ALL came for the slot at this offset: whether that is all that is to be done with it,
   since it came before its chunk was sent, or again. */
int sa_partial_take(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, uint32_t kind,
                    uint32_t chunk, const uint8_t *payload);

/* The chunk in flight in a slot has its result, of this kind; payload: NULL without values. To be called before
   sa_window_answered. */
void sa_partial_answered(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, uint32_t kind,
                         const uint8_t *payload);

/* Give calls what came before they had sent it. */
void sa_partial_take_early(struct sa_partial_sums *sums, struct sa_window *window);

/* A frame of the slot's chunk leaves; its byte of the rank may get CLOSE. */
void sa_partial_sent(struct sa_partial_sums *sums, struct sa_window *window, uint32_t offset, int64_t now_ns,
                     uint8_t *rank);

/* Write up to `limit` header-only packets that are due, of a class or of SA_ANY_CLASS: the i-th to places[i] or, if that
   is NULL, back to back from `out` on. header: of all packets of the endpoint. Returns how many. */
uint32_t sa_partial_frames(struct sa_partial_sums *sums, uint32_t class, uint32_t limit, const struct sa_header *header,
                           uint8_t *const *places, uint8_t *out);

void sa_partial_handle_timer(struct sa_partial_sums *sums, int64_t now_ns);

/* -1: nothing is to be finalised. */
static inline int64_t sa_partial_deadline_ns(const struct sa_partial_sums *sums) {
    return sums->presence && sums->closing.after != &sums->closing ? sums->closing.after->close_ns : -1;
}
