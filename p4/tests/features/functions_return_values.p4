// A function's result, from several returns.
#include "include/values.p4"

bit<8> largest(in bit<8> x, in bit<8> y) {
    if (x > y) {
        return x;
    }
    return y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = (bit<16>) largest(h.v.a, h.v.b);
    }
}

SWITCH(Work)
