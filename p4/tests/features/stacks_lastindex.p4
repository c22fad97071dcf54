// lastIndex in a parser is the index of the last element filled.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

struct headers {
    item_t[4] i;
    item_t n;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.i.next);
        transition select(h.i.last.more) {
            0: done;
            default: start;
        }
    }

    state done {
        h.n.setValid();
        h.n.more = 0xee;
        h.n.x = (bit<8>) h.i.lastIndex;
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
