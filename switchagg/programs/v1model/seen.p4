// S3: the ranks that have contributed to what a slot version holds, a bit for each, and G3: whether one of their packets
// was marked. Two registers: bmv2's control plane reads cells as signed 64-bit numbers, and a bit<64> with rank 63 is none.

// A parent's result before all ranks are in (H5).
#define EARLY (FROM_PARENT && meta.before & meta.full != meta.full)

control Seen(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(2 * SLOTS * PASSES) low;
    register<bit<33>>(2 * SLOTS * PASSES) high; // the mark in front

    @atomic
    action add() {
        bit<32> ranks_low;
        bit<33> ranks_high;
        low.read(ranks_low, meta.index);
        high.read(ranks_high, meta.index);
        meta.before = meta.fresh == 1 ? 64w0 : ranks_high[31:0] ++ ranks_low;
        meta.seen = meta.before | (EARLY ? 64w0 : meta.rank);
        bit<1> marked = meta.before == 0 ? 1w0 : ranks_high[32:32];
        hdr.chunk.rank = FROM_PARENT ? hdr.chunk.rank : hdr.chunk.rank | marked ++ 7w0;
        marked = FROM_PARENT && meta.before != meta.full ? marked : hdr.chunk.rank[7:7];
        low.write(meta.index, meta.seen[31:0]);
        high.write(meta.index, marked ++ meta.seen[63:32]);
    }

    apply {
        add();
        if (EARLY) {
            meta.outcome = DROP_PARENT_EARLY;
        }
    }
}
