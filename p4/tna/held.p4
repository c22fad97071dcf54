// S2: the chunk number that a slot version holds. The register gives back what it held before and takes a newer number.
//
// "Newer" is modulo 2^32, and a stateful ALU compares without wrapping, so it is put as an interval: this packet's number
// is newer than those from oldest (chunk - 2^31 + 1) to chunk - 1. Where that interval passes zero it is two.

control Held(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, index_t>(2 * SLOTS, 0) held;

    RegisterAction<bit<32>, index_t, bit<32>>(held) advance = {
        void apply(inout bit<32> chunk, out bit<32> before) {
            before = chunk;
            if (chunk < hdr.chunk.chunk && chunk >= meta.oldest) {
                chunk = hdr.chunk.chunk;
            }
        }
    };

    RegisterAction<bit<32>, index_t, bit<32>>(held) advance_past_zero = {
        void apply(inout bit<32> chunk, out bit<32> before) {
            before = chunk;
            if (chunk < hdr.chunk.chunk || chunk >= meta.oldest) {
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

    action compare_past_zero() {
        meta.held = advance_past_zero.execute(meta.index);
    }

    action check() {
        meta.held = look.execute(meta.index);
    }

    table chunks {
        key = {
            meta.mode: ternary;
            hdr.chunk.chunk: ternary;
        }
        actions = { compare; compare_past_zero; check; NoAction; }
        const default_action = NoAction(); // never: a default can't use a register
        const entries = {
            (Mode.COUNT, 0x7fffffff): compare();
            (Mode.COUNT, 0 &&& 0x80000000): compare_past_zero();
            (Mode.COUNT, _): compare();
            (_, _): check();
        }
        size = 4;
    }

    apply {
        chunks.apply();
        meta.ahead = hdr.chunk.chunk - meta.held;
    }
}
