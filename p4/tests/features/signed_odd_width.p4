// int<4> holds -8 to 7.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<4> x = (int<4>) h.v.a[3:0];
        int<8> y = (int<8>) x;
        h.v.a = (bit<8>) y;
        h.v.b = 0;
        if (x < 0) { h.v.b = 1; }
        x = x + 1;
        h.v.c = (bit<16>) (bit<4>) x;
    }
}

SWITCH(Work)
