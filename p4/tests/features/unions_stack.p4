// A stack of unions, each element with its own member.
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
    either_t[2] u;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.k);
        transition select(h.k.kind) {
            1: short_long;
            2: long_short;
        }
    }

    state short_long {
        b.extract(h.u.next.s);
        b.extract(h.u.next.l);
        transition accept;
    }

    state long_short {
        b.extract(h.u.next.l);
        b.extract(h.u.next.s);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.u[0].s.isValid()) {
            h.u[0].s.x = h.u[1].l.y[7:0];
        }
        if (h.u[1].s.isValid()) {
            h.u[1].s.x = h.u[0].l.y[15:8];
        }
    }
}

SWITCH(Work)
