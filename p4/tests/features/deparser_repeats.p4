// A header may be emitted twice.
#include <core.p4>
#include <v1model.p4>

header one_t {
    bit<8> x;
}

struct headers {
    one_t p;
    one_t q;
    one_t[2] r;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.p);
        b.extract(h.q);
        b.extract(h.r.next);
        transition select(h.p.x) {
            1: accept;
            default: more;
        }
    }

    state more {
        b.extract(h.r.next);
        transition accept;
    }
}

control NoChecks(inout headers h, inout metadata m) {
    apply {}
}

control Work(inout headers h, inout metadata m, inout standard_metadata_t s) {
    apply {
        s.egress_spec = 1;
    }
}

control NoEgress(inout headers h, inout metadata m, inout standard_metadata_t s) {
    apply {}
}

control Write(packet_out b, in headers h) {
    apply {
        b.emit(h.p);
        b.emit(h.q);
        b.emit(h.p);
    }
}

V1Switch(Read(), NoChecks(), Work(), NoEgress(), NoChecks(), Write()) main;
