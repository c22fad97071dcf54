/* A call over the caller's array: which values each chunk of a stream carries (W3, W4, W13), computed
   from the chunk's position, with nothing stored but the agreed codes, 2 bytes per data chunk where the codec has any.
   Positions count the call's chunks from 0:

       S0  S1 D D D ... D   S2 D D ... D   ...   D D ... D        (a scale chunk S for every group of E data chunks D)
           ^ data of group 0    ^ group 1              ^ last group */
#pragma once

#include "switchagg/native/codecs/codec.h"
#include "switchagg/native/worker/endpoint.h"
#include "switchagg/native/worker/layout.h"
#include "switchagg/native/worker/verified_sums.h"

/* The rank that makes a call. */
struct sa_caller {
    uint32_t rank;
    uint32_t elements; /* E */
    uint32_t presence; /* elements of a data chunk that say whose values are in it (Q6) */
    uint32_t *scratch; /* E elements, for a moment */
    uint64_t *chunks_of; /* [m]: counts data chunks of partial sums that hold the values of m ranks */
    const struct sa_verified_sums *verified; /* NULL: sums aren't */
};

struct sa_small;

struct sa_call {
    const struct sa_call_form *form;
    struct sa_coding coding;
    struct sa_layout layout;
    uint8_t *data;
    float *residual; /* as long as `data`, or NULL */
    uint64_t groups; /* of data chunks with a scale chunk each; 0: no agreement */
    uint64_t chunks;
    uint64_t ready;  /* leading chunks that may be sent now */
    uint64_t near;   /* group of the last chunk asked for, mostly the next one's, too: saves divisions */
    uint64_t known;  /* leading groups whose codes are agreed */
    uint64_t prepared; /* leading data chunks with a code in `codes` */
    int16_t *codes;  /* of each data chunk, if agreed on: this worker's own until then */
    int16_t *local_codes; /* this worker's own: `codes`, or an array beside it where it is needed later */
    uint32_t op;
    uint32_t ahead;  /* group known + 1 is agreed as well */
    uint32_t rank;
    uint32_t route;  /* who gives the values, and who gets the results */
    uint32_t routed; /* the packets say so; else all ranks send and get values */
    uint32_t mean;   /* of a partial sum: it is divided by the ranks in it */
    uint32_t elements;
    uint32_t presence;
    uint32_t *scratch;
    uint64_t *chunks_of;
    const struct sa_verified_sums *verified;
    struct sa_small *small; /* of a small call */
    uint32_t undecided;     /* it isn't known yet how many chunks it has (W16): later calls wait for that */
};

/* How a call is laid out in chunks. */
struct sa_call_form {
    /* Returns op, route and owner of a chunk's packets: sa_kind without flags. */
    uint32_t (*kind)(struct sa_call *call, uint64_t position);

    /* Write the payload of a chunk that is ready and not yet answered, and for which this rank gives values. */
    void (*read)(struct sa_call *call, uint64_t position, uint8_t *payload);

    /* Take the result of a chunk, once for each that this rank gets, in any order. */
    void (*write)(struct sa_call *call, uint64_t position, const uint8_t *payload);

    /* Does the same for a result without values. */
    void (*pass)(struct sa_call *call, uint64_t position);

    /* What the tag of a data chunk, of op SUM, depends on (V4). */
    struct sa_tag_terms (*terms)(struct sa_call *call, uint64_t position);
};

/* Returns how many codes a call stores. elements: E. */
uint64_t sa_call_codes(const struct sa_coding *coding, const struct sa_submission *submission, uint32_t elements);

/* `codes`: room for sa_call_codes of them. coding: its elements are fewer than the caller's where data chunks have
   presence behind their words (Q6), or a tag (V4). */
void sa_call_init(struct sa_call *call, const struct sa_coding *coding, const struct sa_submission *submission,
                  const struct sa_caller *caller, int16_t *codes);

#define SA_NO_POSITION UINT64_MAX

/* Returns the chunk whose result is that of a data row. SA_NO_POSITION: this rank gets none, or none counts as yet. */
uint64_t sa_call_position(const struct sa_call *call, uint64_t row);

/* Write a chunk's payload, with its tag and mask if it has these. kind: of its packets; chunk: its number in the stream. */
void sa_call_read(struct sa_call *call, uint32_t stream, uint64_t chunk, uint64_t position, uint32_t kind, uint8_t *payload);

/* Returns the payload of a result without its mask, if it has one (X3); it is valid until the next call. */
const uint8_t *sa_call_unmasked(const struct sa_call *call, uint32_t stream, uint64_t chunk, uint32_t kind,
                                const uint8_t *payload);

/* Whether a result can be right: a sum by its tag; a maximum, to which this rank gives, is nowhere below its values (V6). */
int sa_call_fits(struct sa_call *call, uint32_t stream, uint64_t chunk, uint64_t position, uint32_t kind, int gives,
                 const uint8_t *payload);
