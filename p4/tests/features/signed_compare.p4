// The order of int<8> is signed.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<8> x = (int<8>) h.v.a;
        int<8> y = (int<8>) h.v.b;
        h.v.c = 0;
        if (x < y) { h.v.c = h.v.c | 1; }
        if (x > -2) { h.v.c = h.v.c | 2; }
        if (x >= y) { h.v.c = h.v.c | 4; }
    }
}

SWITCH(Work)
