// Checksums by exclusive-or of words.
#include <core.p4>
#include <v1model.p4>

header words_t {
    bit<16> x;
    bit<16> y;
    bit<16> sum;
}

struct headers {
    words_t w;
}

struct metadata {}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.w);
        transition accept;
    }
}

#include "include/pipeline.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
    }
}

CHECKSUMS(Compute) {
    apply {
        update_checksum(true, {h.w.x, h.w.y}, h.w.sum, HashAlgorithm.xor16);
    }
}

SWITCH_WITH_CHECKSUMS(NoVerify, Work, Compute)
