// A varbit beyond the packet's end: error PacketTooShort.
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
        h.f.setValid();
        h.f.what = s.parser_error == error.PacketTooShort ? 8w1 : 8w0;
    }
}

SWITCH(Work)
