/* A small call: so few float32 values that their codes are predicted, and one round trip is enough (F8, W16), as switchagg/calls/small_call.py. The call's head, one chunk with the codes, goes before it. */
#pragma once

#include "switchagg/native/worker/call.h"

#define SA_SMALL_ROWS 8u
#define SA_SMALL_WORKERS 64u /* of a job with small calls */
#define SA_PLACES 61u /* a prime, so that round numbers of values spread */

/* The codes on which ranks agreed last, by the number of values of the call, modulo SA_PLACES. */
struct sa_predictions {
    struct sa_prediction {
        uint64_t count;
        int16_t codes[SA_SMALL_ROWS];
    } places[SA_PLACES];
};

/* Behind it lie its results that came before the head's; then, if the data goes again, its values. */
struct sa_small {
    uint32_t rows;
    uint32_t held; /* which results, a bit each, */
    uint32_t wrong; /* and which of these don't fit this rank's prediction (V8) */
    uint32_t again;
    int16_t local_codes[SA_SMALL_ROWS], predicted[SA_SMALL_ROWS], agreed[SA_SMALL_ROWS];
    uint32_t early_results[];
};

/* R, if a call of so many float32 in fixed point, summed over all ranks for all, is small; else 0. room: elements of a data
   chunk that carry words. */
uint32_t sa_small_rows(uint32_t room, uint32_t workers, uint64_t count);

/* Returns the bytes of a struct sa_small. */
uint64_t sa_small_bytes(uint32_t room, uint32_t rows);

/* coding: of wide_fixed_point. small: sa_small_bytes of memory. */
void sa_small_init(struct sa_call *call, const struct sa_coding *coding, const struct sa_submission *submission,
                   const struct sa_verified_sums *verified, struct sa_small *small);

/* Write what the head has of this call, 3 * rows codes: its own, the predicted ones, their negatives. The call does so
   once. */
void sa_small_predict(struct sa_call *call, const struct sa_predictions *predictions, int32_t *codes);

/* Take what the head's result has of it; whether all ranks predicted the agreed codes. If not, there are more chunks.
   verified: a row of zeros or NaN has to be predicted, too (V8), as a tag depends on the code. */
int sa_small_decide(struct sa_call *call, struct sa_predictions *predictions, const int32_t *codes, int verified);

/* See sa_call_position: none counts until it is decided, nor what was wrong by then. */
uint64_t sa_small_position(const struct sa_call *call, uint64_t row);
