/* Headers that don't start at a byte. */
#include "p4vm.h"

const uint8_t *p4_read_aligned(struct p4_engine *engine, uint64_t bits) {
    p4_bits_copy(engine->aligned, 0, engine->in, engine->cursor, bits);
    return engine->aligned;
}

void p4_append(struct p4_engine *engine, const uint8_t *from, uint64_t bits) {
    uint64_t end = engine->out_bits + bits;
    p4_bits_copy(engine->out, engine->out_bits, from, 0, bits);
    engine->out_bits = end;
    if (end & 7) engine->out[end >> 3] &= (uint8_t)(0xff00u >> (end & 7)); /* zeros until more comes */
}
