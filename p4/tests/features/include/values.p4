// Packets that are four numbers of 1, 1, 2 and 4 bytes. METADATA: fields of the metadata, if any.
#include <core.p4>
#include <v1model.p4>

#ifndef METADATA
#define METADATA
#endif

header values_t {
    bit<8> a;
    bit<8> b;
    bit<16> c;
    bit<32> d;
}

struct headers {
    values_t v;
}

struct metadata {
    METADATA
}

parser Read(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start {
        b.extract(h.v);
        transition accept;
    }
}

#include "pipeline.p4"
