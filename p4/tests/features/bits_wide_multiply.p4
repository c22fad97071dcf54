// The product of two bit<96> modulo 2 to the 96th.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<96> x = (bit<96>) h.v.d;
        bit<96> y = x * x * x;
        h.v.d = y[95:64];
        h.v.c = y[47:32];
        h.v.a = y[7:0];
    }
}

SWITCH(Work)
