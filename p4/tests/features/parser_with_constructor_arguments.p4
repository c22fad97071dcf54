// Two instances of a parser, made with different numbers.
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

parser Step(packet_in b, out key_t k)(bit<8> by) {
    state start {
        b.extract(k);
        k.x = k.x + by;
        transition accept;
    }
}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    Step(1) one;
    Step(16) sixteen;

    state start {
        one.apply(b, h.k);
        sixteen.apply(b, h.l);
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
