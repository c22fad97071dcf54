// advance beyond the packet's end: error PacketTooShort.
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
        b.advance((bit<32>) h.k.x << 3);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.seen.setValid();
        h.seen.how = s.parser_error == error.PacketTooShort ? 8w1 : 8w0;
    }
}

SWITCH(Work)
