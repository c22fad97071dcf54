// S3: the ranks that have contributed to what a slot version holds, a bit for each.

control Seen(inout metadata_t meta) {
    register<bit<64>>(2 * SLOTS * PASSES) seen;

    @atomic
    action add() {
        bit<64> ranks;
        seen.read(ranks, meta.index);
        meta.before = meta.fresh == 1 ? 64w0 : ranks;
        meta.seen = meta.before | meta.rank;
        seen.write(meta.index, meta.seen);
    }

    apply {
        add();
    }
}
