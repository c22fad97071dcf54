/* A call over the caller's array: which values each chunk of a stream carries (W3, W4 of PROTOCOL.md), computed from
   the chunk's position, with nothing stored but the agreed codes, 2 bytes per data chunk where the codec has any.
   Positions count the call's chunks from 0:

       S0  S1 D D D ... D   S2 D D ... D   ...   D D ... D        (a scale chunk S for every group of E data chunks D)
           ^ data of group 0    ^ group 1              ^ last group */
#ifndef SWITCHAGG_CALL_H
#define SWITCHAGG_CALL_H

#include "codecs/codec.h"

struct sa_call {
    struct sa_coding coding;
    uint8_t *data;
    uint64_t count;  /* values */
    uint64_t rows;   /* data chunks */
    uint64_t groups; /* of data chunks with a scale chunk each; 0: no agreement */
    uint64_t chunks;
    uint64_t ready;  /* leading chunks that may be sent now */
    uint64_t known;  /* leading groups whose codes are agreed */
    uint64_t prepared; /* leading rows with a code in `codes` */
    int16_t *codes;  /* of each row, if agreed on: this worker's own until then */
    uint32_t op;
    uint32_t ahead; /* group known + 1 is agreed as well */
};

/* How many codes a call of `count` values stores. */
uint64_t sa_call_codes(const struct sa_coding *coding, uint64_t count);

/* `codes`: room for sa_call_codes of them. */
void sa_call_init(struct sa_call *call, const struct sa_coding *coding, uint32_t op, void *data, uint64_t count,
                  int16_t *codes);

/* Write the payload of a chunk that is ready and not yet answered; returns its op. */
uint32_t sa_call_read(struct sa_call *call, uint64_t position, uint8_t *payload);

/* Take the result of a chunk, once for each, in any order. */
void sa_call_write(struct sa_call *call, uint64_t position, const uint8_t *payload);

#endif
