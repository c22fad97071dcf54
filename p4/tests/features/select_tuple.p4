// Several values at once, each with its own set.
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
        transition select(h.k.x, h.k.y) {
            (1, 2): both;
            (1, _): first;
            (0x10 &&& 0xf0, 3 .. 5): ranged;
            default: other;
        }
    }

    state both {
        h.seen.setValid();
        h.seen.how = 1;
        transition accept;
    }

    state first {
        h.seen.setValid();
        h.seen.how = 2;
        transition accept;
    }

    state ranged {
        h.seen.setValid();
        h.seen.how = 3;
        transition accept;
    }

    state other {
        h.seen.setValid();
        h.seen.how = 4;
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
