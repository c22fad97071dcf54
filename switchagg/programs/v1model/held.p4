// S2: the chunk number that a slot version holds. The chunk two windows later takes the version over, all others are dropped.

control Held(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(2 * SLOTS * PASSES) held;
    bit<32> ahead = 0; // modulo 2^32

    @atomic
    action compare() {
        bit<32> chunk;
        held.read(chunk, meta.index);
        ahead = hdr.chunk.chunk - chunk;
        meta.fresh = ahead == ((bit<32>)meta.last_offset + 1) << 1 ? 1w1 : 1w0;
        held.write(meta.index, meta.fresh == 0 || FROM_PARENT ? chunk : hdr.chunk.chunk);
    }

    apply {
        compare();
        if (FROM_PARENT && ahead != 0) {
            meta.outcome = DROP_PARENT_CHUNK; // H5
        } else if (ahead != 0 && meta.fresh == 0) {
            meta.outcome = ahead[31:31] == 1 ? DROP_OLDER : DROP_EARLY;
        }
    }
}
