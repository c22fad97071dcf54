// lookahead reads what comes next and leaves it there.
#include <core.p4>
#include <v1model.p4>

header seen_t {
    bit<8> how;
}

header key_t {
    bit<8> x;
    bit<8> y;
}

struct headers {
    seen_t seen;
    key_t k;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        transition select(b.lookahead<bit<8>>()) {
            1: first;
            default: second;
        }
    }

    state first {
        bit<16> both = b.lookahead<bit<16>>();
        b.extract(h.k);
        h.seen.setValid();
        h.seen.how = both[7:0] + 1;
        transition accept;
    }

    state second {
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;

    }
}

SWITCH(Work)
