// A struct hashes as its fields in order.
#include "include/values.p4"

struct pair_t {
    bit<8> x;
    bit<16> y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        pair_t p = {h.v.a, h.v.c}; hash(h.v.d, HashAlgorithm.crc32, 32w0, p, 33w0x100000000);
    }
}

SWITCH(Work)
