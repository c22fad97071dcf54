// Two headers are equal if both are invalid, or both valid with equal fields.
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
        bit<8> n = 0;
        if (h.p == h.q) {
            n = n | 1;
        }
        if (h.p == h.r) {
            n = n | 2;
        }
        h.q.setInvalid();
        if (h.q == h.r) {
            n = n | 4;
        }
        if (h.p != h.q) {
            n = n | 8;
        }
        h.r.setValid();
        h.r.x = n;
    }
}

SWITCH(Work)
