// A varbit field takes as many bits as the second argument of extract says.
#include <core.p4>
#include <v1model.p4>

header options_t {
    bit<8> length;
    varbit<64> options;
    bit<8> after;
}

header flag_t {
    bit<8> what;
}

struct headers {
    flag_t f;
    options_t o;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.o, (bit<32>) b.lookahead<bit<8>>() << 3);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.o.after = h.o.after + 1;
    }
}

SWITCH(Work)
