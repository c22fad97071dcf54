// A header assigned from a list becomes valid; {#} makes it invalid.
#include <core.p4>
#include <v1model.p4>

header two_t {
    bit<8> x;
    bit<8> y;
}

struct headers {
    two_t p;
    two_t q;
    two_t r;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.p);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.q = {h.p.y, h.p.x};
        h.r = {y = 9, x = 8};
        if (h.p.x == 1) {
            h.p = (two_t) {#};
        }
    }
}

SWITCH(Work)
