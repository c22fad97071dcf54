// low .. high includes both ends.
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
        b.extract(h.k);
        transition select(h.k.x) {
            10 .. 20: middle;
            0 .. 9: low;
            default: high;
        }
    }

    state middle {
        h.seen.setValid();
        h.seen.how = 1;
        transition accept;
    }

    state low {
        h.seen.setValid();
        h.seen.how = 2;
        transition accept;
    }

    state high {
        h.seen.setValid();
        h.seen.how = 3;
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
