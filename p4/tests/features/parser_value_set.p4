// A value set that the control plane fills while the program runs.
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
    value_set<bit<8>>(4) friends;

    state start {
        b.extract(h.k);
        transition select(h.k.x) {
            friends: friend;
            default: accept;
        }
    }

    state friend {
        h.seen.setValid();
        h.seen.how = 1;
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
