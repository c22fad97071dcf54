// The Internet checksum of RFC 1071 as a hash.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.c, HashAlgorithm.csum16, 16w0, {h.v.a, h.v.b, h.v.c, h.v.d}, 17w0x10000);
    }
}

SWITCH(Work)
