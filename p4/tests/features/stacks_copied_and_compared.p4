// Stacks are assigned and compared as a whole.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

struct headers {
    item_t[2] i;
    item_t[2] j;
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
        bool same = h.i == h.j;
        h.j = h.i;
        if (h.i == h.j && !same) {
            h.j[0].x = h.j[0].x + 1;
        }
    }
}

SWITCH(Work)
