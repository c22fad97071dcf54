// CRC-32 as of Ethernet: reflected 0x04c11db7, all ones at the start and exclusive-or at the end. Expected by
// zlib.crc32.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.d, HashAlgorithm.crc32, 32w0, {h.v.a, h.v.b, h.v.c, h.v.d}, 33w0x100000000);
    }
}

SWITCH(Work)
