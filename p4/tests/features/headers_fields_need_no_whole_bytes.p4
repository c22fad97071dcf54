// Fields are packed bit by bit, most significant first, signed ones and booleans included.
#include <core.p4>
#include <v1model.p4>

header packed_t {
    bit<3> x;
    int<7> y;
    bit<13> z;
    bit<1> w;
}

struct headers {
    packed_t p;
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
        h.p.x = h.p.x + 1;
        h.p.y = h.p.y - 1;
        h.p.z = ~h.p.z;
        h.p.w = h.p.w + 1;
    }
}

SWITCH(Work)
