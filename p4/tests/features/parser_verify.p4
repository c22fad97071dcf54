// verify with false sets its error and rejects: what follows isn't read.
#include <core.p4>
#include <v1model.p4>

header seen_t {
    bit<8> how;
}

header key_t {
    bit<8> x;
    bit<8> y;
}

header tail_t {
    bit<8> z;
}

error { TooLarge }

struct headers {
    seen_t seen;
    key_t k;
    tail_t t;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.k);
        verify(h.k.x < 10, error.TooLarge);
        b.extract(h.t);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.seen.setValid();
        h.seen.how = s.parser_error == error.TooLarge ? 8w1 : 8w0;
        if (h.t.isValid()) {
            h.t.z = h.t.z + 1;
        }
    }
}

SWITCH(Work)
