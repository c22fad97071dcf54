// S2: the chunk number that a slot version holds. The register gives back what it held before, and takes the number that
// is two windows later.

control Held(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, index_t>(2 * SLOTS, 0) held;

    RegisterAction<bit<32>, index_t, bit<32>>(held) advance = {
        void apply(inout bit<32> chunk, out bit<32> before) {
            before = chunk;
            if (chunk == meta.previous) {
                chunk = hdr.chunk.chunk;
            }
        }
    };

    RegisterAction<bit<32>, index_t, bit<32>>(held) look = {
        void apply(inout bit<32> chunk, out bit<32> before) {
            before = chunk;
        }
    };

    action compare() {
        meta.held = advance.execute(meta.index);
    }

    action check() {
        meta.held = look.execute(meta.index);
    }

    table chunks {
        key = { meta.mode: ternary; }
        actions = { compare; check; NoAction; }
        const default_action = NoAction(); // never: a default can't use a register
        const entries = {
            Mode.COUNT: compare();
            _: check();
        }
        size = 2;
    }

    apply {
        chunks.apply();
        meta.ahead = hdr.chunk.chunk - meta.held;
        meta.beyond = meta.previous - meta.held;
    }
}
