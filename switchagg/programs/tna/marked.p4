// G2 to G4: whether a packet, and any contribution to what its slot version holds, met congestion. A mark is the bit of
// the header, so that a packet and the register hold it alike; it travels in the header from pass to pass.

control Met(inout headers_t hdr, inout metadata_t meta) {
    action congested() {
        meta.marked = MARKED;
        hdr.ipv4.ecn = 2;
    }

    action as_it_says() {
        meta.marked = hdr.chunk.rank & MARKED;
    }

    table marks {
        key = { hdr.ipv4.ecn: exact; }
        actions = { congested; as_it_says; }
        const default_action = as_it_says();
        const entries = { 3: congested(); }
        size = 1;
    }

    apply {
        marks.apply();
    }
}

control Marked(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<8>, index_t>(2 * SLOTS, 0) marked;

    RegisterAction<bit<8>, index_t, bit<8>>(marked) start = {
        void apply(inout bit<8> mark) {
            mark = meta.marked;
        }
    };

    RegisterAction<bit<8>, index_t, bit<8>>(marked) add = {
        void apply(inout bit<8> mark, out bit<8> now) {
            mark = mark | meta.marked;
            now = mark;
        }
    };

    action fresh() {
        start.execute(meta.index);
    }

    action again() {
        meta.marked = add.execute(meta.index);
    }

    table chunks {
        key = {
            meta.mode: exact;
            meta.ahead: ternary;
            meta.beyond: ternary;
        }
        actions = { fresh; again; NoAction; }
        const default_action = NoAction();
        const entries = {
            (Mode.COUNT, 0, _): again();
            (Mode.COUNT, _, 0): fresh();
        }
        size = 2;
    }

    apply {
        chunks.apply();
        hdr.chunk.rank = hdr.chunk.rank | meta.marked;
    }
}
