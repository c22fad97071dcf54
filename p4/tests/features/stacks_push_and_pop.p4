// push_front makes room at the start, with invalid elements; pop_front drops the first ones.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

struct headers {
    item_t[3] i;
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
        bit<8> what = h.i[0].x;
        if (what == 1) {
            h.i.push_front(1);
            h.i[0].setValid();
            h.i[0] = {9, 9};
        } else if (what == 2) {
            h.i.pop_front(1);
        } else if (what == 3) {
            h.i.push_front(2);
        } else if (what == 4) {
            h.i.pop_front(5);
        }
    }
}

SWITCH(Work)
