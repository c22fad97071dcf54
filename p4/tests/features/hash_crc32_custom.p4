// crc32_custom is CRC-32 until the control plane changes its parameters.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.d, HashAlgorithm.crc32_custom, 32w0, {h.v.a, h.v.b, h.v.c, h.v.d}, 33w0x100000000);
    }
}

SWITCH(Work)
