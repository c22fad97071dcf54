// CRC-16/ARC: reflected 0x8005, zero at the start; of 123456789 it is 0xbb3d.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.c, HashAlgorithm.crc16, 16w0, {h.v.a, h.v.b, h.v.c, h.v.d}, 17w0x10000);
    }
}

SWITCH(Work)
