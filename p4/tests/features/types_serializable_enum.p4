// An enum with a type may be a header's field, converts to and from its type, and may hold other values.
#include <core.p4>
#include <v1model.p4>

enum bit<16> kind_t {
    small = 5,
    large = 0x1234,
    same = 6
}

header kinds_t {
    kind_t kind;
    bit<16> number;
}

struct headers {
    kinds_t k;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.k);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.k.number = (bit<16>) h.k.kind + 1;
        if (h.k.kind == kind_t.small) {
            h.k.kind = kind_t.large;
        } else if (h.k.kind == kind_t.same) {
            h.k.kind = (kind_t) 16w77;
        }
    }
}

SWITCH(Work)
