// P6 and S1. All tables look at the packet alone, so they share a stage; `reasons` then is the rule, line by line. The
// control plane fills the tables when it admits a job and empties them when it evicts one (S7, S8).

// UDP's header and ours: what is left of UDP's length without the values.
#define HEADERS 28

// A rank that is the owner: FROM_OWNER it gives, TO_OWNER it gives not.
#define OWNS(first, i) \
    (Mode.COUNT, FROM_OWNER, first + i, first + i): gives(); \
    (Mode.COUNT, TO_OWNER, first + i, first + i): gets();

control Admission(inout headers_t hdr, inout metadata_t meta) {
    action set_job(bit<16> group) {
        meta.job = 1;
        meta.group = group;
    }

    action set_generation() {
        meta.generation = 1;
    }

    action set_stream(bit<32> two_windows) {
        meta.stream = 1;
        meta.previous = hdr.chunk.chunk - two_windows;
    }

    action set_slot() {
        meta.slot = 1;
    }

    action set_rank() {
        meta.rank = 1;
    }

    action set_member(bit<32> low, bit<32> high, bit<32> others_low, bit<32> others_high) {
        meta.member = 1;
        meta.rank_low = low;
        meta.rank_high = high;
        meta.others_low = others_low;
        meta.others_high = others_high;
    }

    action set_owner(bit<32> givers_low, bit<32> givers_high) {
        meta.owner = 1;
        meta.mask_low = givers_low;
        meta.mask_high = givers_high;
    }

    action set_elements() {
        meta.elements = 1;
    }

    table jobs {
        key = { hdr.chunk.job: exact; }
        actions = { set_job; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    table generations {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.generation: exact;
        }
        actions = { set_generation; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    table streams {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.stream: exact;
        }
        actions = { set_stream; NoAction; }
        default_action = NoAction();
        size = 1024;
    }

    table slots {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.stream: exact;
            hdr.chunk.slot: range;
        }
        actions = { set_slot; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    table ranks {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.rank[6:0]: exact; // with CLOSE it is none
        }
        actions = { set_rank; NoAction; }
        default_action = NoAction();
        size = 2048;
    }

    table members {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.rank[6:0]: exact; // with CLOSE it is none
            meta.port: exact;
            hdr.ipv4.source: exact;
            hdr.udp.source: exact;
        }
        actions = { set_member; NoAction; }
        default_action = NoAction();
        size = 2048;
    }

    // The ranks that give, for each route and owner; nothing for a job of one worker.
    table owners {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.route: exact;
            hdr.chunk.owner: exact;
        }
        actions = { set_owner; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    table sizes {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.elements: exact;
        }
        actions = { set_elements; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    // A table, or the compiler puts the shift into the subtraction, which is more than one stage can do.
    action size_of_values() {
        meta.size = hdr.chunk.elements << 2;
    }

    table sizing {
        actions = { size_of_values; }
        const default_action = size_of_values();
        size = 1;
    }

    action admit() {
        meta.outcome = UNDECIDED;
    }

    action drop(bit<8> reason) {
        meta.outcome = reason;
    }

    action all() {
        meta.gives = 1;
        meta.mask_low = 0xffffffff;
        meta.mask_high = 0xffffffff;
    }

    action gives() {
        meta.gives = 1;
    }

    action gets() {
        meta.gives = 0;
        meta.mask_low = 0xffffffff;
        meta.mask_high = 0xffffffff;
    }

    // Who gives values. In a further pass every packet has some.
    table routes {
        key = {
            meta.mode: ternary;
            hdr.chunk.route: ternary;
            hdr.chunk.owner: ternary;
            hdr.chunk.rank[5:0]: ternary;
        }
        actions = { all; gives; gets; }
        const default_action = gives();
        const entries = {
            (Mode.COUNT, ALL, _, _): all();
            EACH(32, OWNS, 0)
            EACH(32, OWNS, 32)
            (Mode.COUNT, FROM_OWNER, _, _): gets();
        }
        size = 130;
    }

    // The first line that fits: P6 in its order, then S1 in its order.
    table reasons {
        key = {
            meta.short: ternary;
            hdr.chunk.magic: ternary;
            hdr.chunk.wire_version: ternary;
            hdr.chunk.route: ternary;
            hdr.chunk.owner: ternary;
            hdr.chunk.elements: ternary;
            meta.others: ternary;
            hdr.chunk.result: ternary;
            meta.job: ternary;
            meta.generation: ternary;
            meta.stream: ternary;
            meta.slot: ternary;
            meta.rank: ternary;
            meta.member: ternary;
            meta.owner: ternary;
            meta.gives: ternary;
            meta.elements: ternary;
        }
        actions = { drop; admit; }
        const default_action = drop(DROP_MAGIC);
        const entries = {
            (1, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_SHORT);
            (_, 0x5341, 2, ALL, 0, ELEMENTS, HEADERS, 0, 1, 1, 1, 1, 1, 1, _, _, 1): admit();
            (_, 0x5341, 2, _, _, ELEMENTS, HEADERS, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1): admit();
            (_, 0x5341, 2, _, _, 0, HEADERS, 0, 1, 1, 1, 1, 1, 1, 1, 0, _): admit();
            (_, 0x5341, 2, 3, _, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_OP);
            (_, 0x5341, 2, ALL, 1 &&& 1, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, 2 &&& 2, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, 4 &&& 4, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, 8 &&& 8, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, 16 &&& 16, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, 32 &&& 32, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_FLAGS);
            (_, 0x5341, 2, ALL, _, 0, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_LENGTH);
            (_, 0x5341, 2, _, _, 0x8000 &&& 0x8000, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_LENGTH);
            (_, 0x5341, 2, _, _, 0x4000 &&& 0x4000, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_LENGTH);
            (_, 0x5341, 2, _, _, _, HEADERS, 1, _, _, _, _, _, _, _, _, _): drop(DROP_RESULT);
            (_, 0x5341, 2, _, _, _, HEADERS, _, 0, _, _, _, _, _, _, _, _): drop(DROP_JOB);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, 0, _, _, _, _, _, _, _): drop(DROP_GENERATION);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, _, 0, _, _, _, _, _, _): drop(DROP_STREAM);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, _, _, 0, _, _, _, _, _): drop(DROP_SLOT);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, _, _, _, 0, _, _, _, _): drop(DROP_RANK);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, _, _, _, _, 0, _, _, _): drop(DROP_PORT);
            (_, 0x5341, 2, TO_OWNER, _, _, HEADERS, _, _, _, _, _, _, _, 0, _, _): drop(DROP_OWNER);
            (_, 0x5341, 2, FROM_OWNER, _, _, HEADERS, _, _, _, _, _, _, _, 0, _, _): drop(DROP_OWNER);
            (_, 0x5341, 2, _, _, _, HEADERS, _, _, _, _, _, _, _, _, _, _): drop(DROP_ELEMENTS);
            (_, 0x5341, 2, _, _, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_LENGTH);
            (_, 0x5341, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _): drop(DROP_WIRE_VERSION);
        }
        size = 32;
    }

    apply {
        sizing.apply();
        meta.index = hdr.chunk.slot[12:0] ++ hdr.chunk.version;
        jobs.apply();
        generations.apply();
        streams.apply();
        slots.apply();
        ranks.apply();
        members.apply();
        owners.apply();
        sizes.apply();
        routes.apply();
        meta.others = hdr.udp.length - meta.size;
        reasons.apply();
    }
}
