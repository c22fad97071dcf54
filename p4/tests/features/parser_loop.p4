// States may go round until the packet says stop.
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
    bit<8> left = 0;
    bit<8> sum = 0;

    state start {
        b.extract(h.k);
        left = h.k.x;
        transition next;
    }

    state next {
        transition select(left) {
            0: done;
            default: one;
        }
    }

    state one {
        sum = sum + b.lookahead<bit<8>>();
        b.advance(8);
        left = left - 1;
        transition next;
    }

    state done {
        h.seen.setValid();
        h.seen.how = sum;
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
