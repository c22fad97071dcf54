// A loop over a stack's indices up to its size.
#include <core.p4>
#include <v1model.p4>

header item_t {
    bit<8> more;
    bit<8> x;
}

struct headers {
    item_t[3] i;
    item_t n;
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
        bit<8> sum = 0;
        for (bit<32> k = 0; k < h.i.size; k = k + 1) {
            if (h.i[k].isValid()) {
                sum = sum + h.i[k].x;
            }
        }
        h.n = {0xee, sum};
    }
}

SWITCH(Work)
