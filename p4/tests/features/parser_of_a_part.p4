// A parser applied in a state of another; both move on in the same packet.
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
    key_t l;
}

struct metadata {}

parser Pair(packet_in b, out key_t k) {
    state start {
        b.extract(k);
        k.y = k.y + 1;
        transition accept;
    }
}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    Pair() pair;

    state start {
        b.extract(h.seen);
        pair.apply(b, h.k);
        transition select(h.k.x) {
            1: more;
            default: accept;
        }
    }

    state more {
        pair.apply(b, h.l);
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
