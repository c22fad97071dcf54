// A stack filled by next until an element says that it is the last.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

struct headers {
    item_t[4] i;
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
        h.i[0].x = h.i[0].x + 1;
        if (h.i[2].isValid()) {
            h.i[2].x = 0xcc;
        }
    }
}

SWITCH(Work)
