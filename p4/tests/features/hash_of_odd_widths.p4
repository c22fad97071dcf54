// Fields are put together bit by bit, zeros at the end up to whole bytes.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.d, HashAlgorithm.crc32, 32w0, {h.v.a[3:0], h.v.c}, 33w0x100000000);
    }
}

SWITCH(Work)
