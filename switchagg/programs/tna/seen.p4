// S3, and the rest of S2: the ranks that have contributed, a bit for each, in two registers of 32.

#define SEEN(half) \
    Register<bit<32>, index_t>(2 * SLOTS, 0) seen_##half; \
    RegisterAction<bit<32>, index_t, bit<32>>(seen_##half) start_##half = { \
        void apply(inout bit<32> ranks) { \
            ranks = meta.rank_##half; \
        } \
    }; \
    RegisterAction<bit<32>, index_t, bit<32>>(seen_##half) add_##half = { \
        void apply(inout bit<32> ranks, out bit<32> before) { \
            before = ranks; \
            ranks = ranks | meta.rank_##half; \
        } \
    }; \
    action fresh_##half() { \
        start_##half.execute(meta.index); \
        meta.before_##half = 0; \
    } \
    action again_##half() { \
        meta.before_##half = add_##half.execute(meta.index); \
    } \
    table ranks_##half { \
        key = { \
            meta.mode: exact; \
            meta.ahead: ternary; \
            meta.beyond: ternary; \
        } \
        actions = { fresh_##half; again_##half; NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (Mode.COUNT, 0, _): again_##half(); \
            (Mode.COUNT, _, 0): fresh_##half(); \
        } \
        size = 2; \
    }

control Seen(inout metadata_t meta) {
    SEEN(low)
    SEEN(high)

    action drop(bit<8> reason) {
        meta.outcome = reason;
    }

    // A packet that comes to fetch sums wants those of its own chunk.
    table order {
        key = {
            meta.mode: ternary;
            meta.ahead: ternary;
            meta.beyond: ternary;
        }
        actions = { drop; NoAction; }
        const default_action = drop(DROP_EARLY);
        const entries = {
            (_, 0, _): NoAction();
            (Mode.COUNT, _, 0): NoAction();
            (_, 0x80000000 &&& 0x80000000, _): drop(DROP_OLDER);
        }
        size = 4;
    }

    apply {
        ranks_low.apply();
        ranks_high.apply();
        order.apply();
        meta.counted_low = meta.before_low & meta.mask_low;
        meta.counted_high = meta.before_high & meta.mask_high;
        meta.repeated_low = meta.before_low & meta.rank_low;
        meta.repeated_high = meta.before_high & meta.rank_high;
        meta.missing_low = meta.others_low & ~meta.before_low;
        meta.missing_high = meta.others_high & ~meta.before_high;
    }
}
