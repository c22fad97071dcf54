// Assigning a header copies its fields and whether it is valid.
#include <core.p4>
#include <v1model.p4>

header one_t {
    bit<8> x;
}

struct headers {
    one_t p;
    one_t q;
    one_t r;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.p);
        b.extract(h.q);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.p.x == 1) {
            h.q = h.r;
        }
        h.r = h.p;
        h.r.x = h.r.x + 0x10;
    }
}

SWITCH(Work)
