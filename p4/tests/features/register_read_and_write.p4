// A register keeps what was written, from packet to packet, cell by cell.
#include "include/values.p4"

CONTROL(Work) {
    register<bit<16>>(4) r;

    apply {
        s.egress_spec = 1;
        bit<16> n;
        r.read(n, (bit<32>) h.v.a);
        r.write((bit<32>) h.v.a, n + h.v.c);
        h.v.d = (bit<32>) n;
    }
}

SWITCH(Work)
