// What is selected on may be computed; enum members and booleans are cases, too.
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
        transition select(h.k.x + h.k.y, h.k.x > h.k.y) {
            (7, true): seven_down;
            (7, false): seven_up;
            default: accept;
        }
    }

    state seven_down {
        h.seen.setValid();
        h.seen.how = 1;
        transition accept;
    }

    state seven_up {
        h.seen.setValid();
        h.seen.how = 2;
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
