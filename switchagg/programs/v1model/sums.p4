// S4: the sums, a register for each lane; a block of values in each pass. What the packet carries on are the sums (S6).

#define REGISTER(block, lane) register<bit<32>>(2 * SLOTS * PASSES) sum##lane;

#define VALUE(block, lane) hdr.values##block.v##lane
#define WRITE(block, lane) sum##lane.write(meta.index, VALUE(block, lane));
#define READ(block, lane) sum##lane.read(VALUE(block, lane), meta.index);
#define ADD(block, lane) \
    sum##lane.read(so_far, meta.index); \
    VALUE(block, lane) = VALUE(block, lane) + so_far; \
    sum##lane.write(meta.index, VALUE(block, lane));
#define MAX(block, lane) \
    sum##lane.read(so_far, meta.index); \
    VALUE(block, lane) = (int<32>)VALUE(block, lane) > (int<32>)so_far ? VALUE(block, lane) : so_far; \
    sum##lane.write(meta.index, VALUE(block, lane));

#define ACTIONS(block, lanes) \
    @atomic action write##block() { EACH(lanes, WRITE, block) } \
    @atomic action read##block() { EACH(lanes, READ, block) } \
    @atomic action add##block() { bit<32> so_far; EACH(lanes, ADD, block) } \
    @atomic action max##block() { bit<32> so_far; EACH(lanes, MAX, block) }

#define COMBINE(block, lanes) \
    if (meta.pass == block) { \
        if (meta.before & meta.mask == 0) { \
            write##block(); \
        } else if (meta.before & meta.rank != 0 || meta.header_only == 1) { \
            read##block(); \
        } else if (hdr.chunk.op == 0) { \
            add##block(); \
        } else { \
            max##block(); \
        } \
    }

#if ELEMENTS < LANES
#define WIDTH ELEMENTS
#else
#define WIDTH 32
#endif

control Sums(inout headers_t hdr, in metadata_t meta) {
    EACH(WIDTH, REGISTER, 0)
    BLOCKS(ACTIONS)

    apply {
        BLOCKS(COMBINE)
    }
}
