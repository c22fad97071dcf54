// S3: the ranks that have contributed to what a slot version holds, a bit for each. Two registers of 32: bmv2's control
// plane reads cells as signed 64-bit numbers, and a bit<64> with rank 63 is none.

// A parent's result before all ranks are in (H5).
#define EARLY (FROM_PARENT && meta.before & meta.full != meta.full)

control Seen(inout metadata_t meta) {
    register<bit<32>>(2 * SLOTS * PASSES) low;
    register<bit<32>>(2 * SLOTS * PASSES) high;

    @atomic
    action add() {
        bit<32> ranks_low;
        bit<32> ranks_high;
        low.read(ranks_low, meta.index);
        high.read(ranks_high, meta.index);
        meta.before = meta.fresh == 1 ? 64w0 : ranks_high ++ ranks_low;
        meta.seen = meta.before | (EARLY ? 64w0 : meta.rank);
        low.write(meta.index, meta.seen[31:0]);
        high.write(meta.index, meta.seen[63:32]);
    }

    apply {
        add();
        if (EARLY) {
            meta.outcome = DROP_PARENT_EARLY;
        }
    }
}
