// Variables and assignments in a parser; a variable of the parser lives on in its states.
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
    bit<8> count = 1;

    state start {
        b.extract(h.k);
        count = count + h.k.x;
        transition more;
    }

    state more {
        bit<8> twice = count * 2;
        count = twice;
        transition done;
    }

    state done {
        h.seen.setValid();
        h.seen.how = count;
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
