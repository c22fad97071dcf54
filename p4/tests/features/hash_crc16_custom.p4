// crc16_custom is CRC-16/ARC until the control plane changes its parameters.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.c, HashAlgorithm.crc16_custom, 16w0, {h.v.a, h.v.b, h.v.c, h.v.d}, 17w0x10000);
    }
}

SWITCH(Work)
