// S2: the chunk number that a slot version holds. Older chunks are dropped, a newer one takes the version over.

control Held(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(2 * SLOTS * PASSES) held;
    bit<1> older = 0;

    @atomic
    action compare() {
        bit<32> chunk;
        held.read(chunk, meta.index);
        bit<32> ahead = hdr.chunk.chunk - chunk; // modulo 2^32
        older = ahead[31:31];
        meta.fresh = (ahead != 0 && older == 0) ? 1w1 : 1w0;
        held.write(meta.index, older == 1 || FROM_PARENT ? chunk : hdr.chunk.chunk);
    }

    apply {
        compare();
        if (FROM_PARENT && (older == 1 || meta.fresh == 1)) {
            meta.outcome = DROP_PARENT_CHUNK; // H5
        } else if (older == 1) {
            meta.outcome = DROP_OLDER;
        }
    }
}
