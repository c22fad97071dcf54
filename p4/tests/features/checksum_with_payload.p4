// The forms with payload go on over what the parser left.
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

CHECKSUMS(Verify) {
    apply {
        verify_checksum_with_payload(true, {h.w.x}, h.w.sum, HashAlgorithm.csum16);
    }
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.w.y = (bit<16>) s.checksum_error;
    }
}

CHECKSUMS(Compute) {
    apply {
        update_checksum_with_payload(true, {h.w.x}, h.w.sum, HashAlgorithm.csum16);
    }
}

SWITCH_WITH_CHECKSUMS(Verify, Work, Compute)
