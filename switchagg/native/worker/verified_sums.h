/* Verified sums at a worker (V2 to V9): what a data chunk's tag is, and whether a result's fits, as
   switchagg/tag.py; and what masks those sums that are secret, too (X1 to X3), as switchagg/calls/mask.py. */
#pragma once

#include "switchagg/native/rule/job.h"
#include "switchagg/native/rule/mask.h"
#include "switchagg/native/rule/tag.h"

/* The facts of a data chunk that its tag depends on, besides its words. */
struct sa_tag_terms {
    int32_t code;          /* under which its row is encoded */
    uint32_t agreed;       /* the ranks have agreed on it: it is the largest of theirs, */
    uint32_t is_largest;   /* and this rank's own, */
    uint32_t signed_words; /* as the codec says */
    uint32_t gives_nothing; /* not even a tag: this rank's values aren't covered by the code (Q6) */
    uint32_t ignored;      /* nobody takes the result */
    uint32_t presence;     /* elements before the tag that say whose values are in the sum (Q6) */
};

struct sa_verified_sums {
    uint32_t elements; /* of a data chunk, its last ones: the tag; 0: the job's sums aren't verified */
    uint32_t rank, workers;
    uint32_t partial; /* the job's sums are (Q1) */
    struct sa_tag_key key;
    struct sa_linear_hash hash; /* of all elements before the tag */
    uint32_t *coefficients;     /* the memory of its */
    uint64_t code_mark; /* a rank whose own code is the agreed one adds it */
    struct sa_mask_key mask_key;
    uint32_t *unmasked; /* E elements, for a moment; NULL: the job's sums aren't secret */
};

/* rank: in the job; key: SA_KEY_BYTES, and behind them, of a job with secret sums, SA_MASK_KEY_BYTES. Returns 0, or -1 without memory. */
int sa_verified_init(struct sa_verified_sums *sums, const struct sa_job *job, uint32_t rank, const uint8_t *key);
void sa_verified_end(struct sa_verified_sums *sums);

/* Write the tag of a chunk behind the words of its payload. chunk: unwrapped. */
void sa_verified_put_tag(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk,
                         const struct sa_tag_terms *terms, uint8_t *payload);

/* Whether a result of op SUM is the sum of what the ranks gave that give values to packets of this kind. */
int sa_verified_fits(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint32_t kind,
                     const struct sa_tag_terms *terms, const uint8_t *payload);

/* Mask the words before the tag of what this rank gives. */
void sa_verified_mask(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint8_t *payload);

/* Returns a result's payload without the masks of the ranks that give values to packets of this kind; it is valid until
   the next call. */
const uint8_t *sa_verified_unmask(const struct sa_verified_sums *sums, uint32_t stream, uint64_t chunk, uint32_t kind,
                                  const uint8_t *payload);
