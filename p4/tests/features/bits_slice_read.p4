// x[h:l] are the bits h to l, counted from the least significant.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.d[31:24]; h.v.b = h.v.d[7:0]; h.v.c = (bit<16>) h.v.d[20:9];
    }
}

SWITCH(Work)
