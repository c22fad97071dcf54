// S4: the sums, in 16 registers of pairs. A stateful ALU holds four instructions, so there is none that only reads: in a
// READ pass the values are zeroed and added.

struct pair_t {
    int<32> low;
    int<32> high;
}

#define ZERO(block, i) \
    hdr.low.v##i = 0; \
    hdr.high.v##i = 0;

#define PAIR(block, i) \
    Register<pair_t, index_t>(2 * SLOTS) sums##i; \
    RegisterAction<pair_t, index_t, int<32>>(sums##i) write##i = { \
        void apply(inout pair_t sum) { \
            sum.low = hdr.low.v##i; \
            sum.high = hdr.high.v##i; \
        } \
    }; \
    RegisterAction<pair_t, index_t, int<32>>(sums##i) add##i = { \
        void apply(inout pair_t sum, out int<32> low) { \
            sum.low = sum.low + hdr.low.v##i; \
            sum.high = sum.high + hdr.high.v##i; \
            low = sum.low; \
        } \
    }; \
    RegisterAction<pair_t, index_t, int<32>>(sums##i) max##i = { \
        void apply(inout pair_t sum, out int<32> low) { \
            sum.low = max(sum.low, hdr.low.v##i); \
            sum.high = max(sum.high, hdr.high.v##i); \
            low = sum.low; \
        } \
    }; \
    RegisterAction<pair_t, index_t, int<32>>(sums##i) fetch##i = { \
        void apply(inout pair_t sum, out int<32> high) { \
            high = sum.high; \
        } \
    }; \
    action do_write##i() { write##i.execute(meta.index); } \
    action do_add##i() { hdr.low.v##i = add##i.execute(meta.index); } \
    action do_max##i() { hdr.low.v##i = max##i.execute(meta.index); } \
    action do_fetch##i() { hdr.high.v##i = fetch##i.execute(meta.index); } \
    table work##i { \
        key = { meta.work: exact; } \
        actions = { do_write##i; do_add##i; do_max##i; do_fetch##i; NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            WRITE: do_write##i(); \
            SUM: do_add##i(); \
            MAX: do_max##i(); \
            FETCH: do_fetch##i(); \
        } \
        size = 4; \
    }

#define WORK(block, i) work##i.apply();

// A READ pass begins with it, and the first pass of a packet without values.
control Zeros(inout headers_t hdr) {
    apply {
        hdr.low.setValid();
        hdr.high.setValid();
        EACH(PAIRS, ZERO, 0)
    }
}

control Sums(inout headers_t hdr, inout metadata_t meta) {
    EACH(PAIRS, PAIR, 0)

    apply {
        EACH(PAIRS, WORK, 0)
    }
}
