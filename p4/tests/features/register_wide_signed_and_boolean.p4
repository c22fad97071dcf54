// Registers of any width, also signed.
#include "include/values.p4"

CONTROL(Work) {
    register<bit<96>>(2) wide;
    register<int<8>>(1) signed;

    apply {
        s.egress_spec = 1;
        bit<96> x;
        wide.read(x, 1);
        h.v.d = x[95:64];
        wide.write(1, x + ((bit<96>) h.v.c << 64));
        int<8> y;
        signed.read(y, 0);
        h.v.a = (bit<8>) y;
        signed.write(0, y - 1);
    }
}

SWITCH(Work)
