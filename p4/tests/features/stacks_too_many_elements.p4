// next beyond the end: error StackOutOfBounds; what was parsed stays.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

header flag_t {
    bit<8> overflow;
}

struct headers {
    flag_t f;
    item_t[2] i;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.i.next);
        transition select(h.i.last.more) {
            0: accept;
            default: start;
        }
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.f.setValid();
        h.f.overflow = s.parser_error == error.StackOutOfBounds ? 8w1 : 8w0;
    }
}

SWITCH(Work)
