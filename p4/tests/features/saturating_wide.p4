// Saturation at 64 bits.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<64> x = h.v.d ++ h.v.d;
        bit<64> y = x |+| 64w0x0000000100000000;
        h.v.d = y[63:32];
        h.v.c = y[15:0];
    }
}

SWITCH(Work)
