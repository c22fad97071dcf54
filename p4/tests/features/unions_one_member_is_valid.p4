// The parser fills one member of a union; that one is sent.
#include <core.p4>
#include <v1model.p4>

header short_t {
    bit<8> x;
}

header long_t {
    bit<16> y;
}

header_union either_t {
    short_t s;
    long_t l;
}

header kind_t {
    bit<8> kind;
}

struct headers {
    kind_t k;
    either_t u;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.k);
        transition select(h.k.kind) {
            1: short;
            2: long;
            default: accept;
        }
    }

    state short {
        b.extract(h.u.s);
        transition accept;
    }

    state long {
        b.extract(h.u.l);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.u.s.isValid()) {
            h.u.s.x = h.u.s.x + 1;
        }
        if (h.u.l.isValid()) {
            h.u.l.y = h.u.l.y + 0x100;
        }
        if (!h.u.isValid()) {
            h.k.kind = 0xff;
        }
    }
}

SWITCH(Work)
