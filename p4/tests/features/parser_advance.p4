// advance skips bits, which are not sent again.
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
        bit<8> skip = b.lookahead<bit<8>>();
        b.advance(8 + ((bit<32>) skip << 3));
        b.extract(h.k);
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
