// A header that egress made is parsed in the next pass.
#include <core.p4>
#include <v1model.p4>

header layer_t {
    bit<8> left;
}

struct headers {
    layer_t fresh;
    layer_t[4] layers;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.layers.next);
        transition select(h.layers.last.left) {
            0: accept;
            default: start;
        }
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = h.layers[0].left == 5 ? 9w2 : 9w1;
    }
}

CONTROL(After) {
    apply {
        if (!h.layers[2].isValid()) {
            h.fresh.setValid();
            h.fresh.left = h.layers[0].left + 1;
            recirculate_preserving_field_list(0);
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
