// The result is base + hash modulo max; max 1 leaves base.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.c, HashAlgorithm.crc32, 16w100, {h.v.d}, 16w10);
        hash(h.v.a, HashAlgorithm.crc32, 8w7, {h.v.d}, 8w1);
    }
}

SWITCH(Work)
