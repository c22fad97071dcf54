/* Headers that don't start at a byte, and stacks of headers. */
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

void p4_push(void *items, size_t item_bytes, int64_t size, int64_t count, uint32_t *next_index) {
    int64_t next = *next_index + count, moved = count < 0 ? -count : count;
    if (moved > size) moved = size;
    uint8_t *first = items, *fresh = count < 0 ? first + (size - moved) * item_bytes : first;
    size_t shift = (size_t)moved * item_bytes, rest = (size_t)(size - moved) * item_bytes;
    memmove(count < 0 ? first : first + shift, count < 0 ? first + shift : first, rest);
    memset(fresh, 0, shift);
    *next_index = (uint32_t)(next < 0 ? 0 : next > size ? size : next);
}
