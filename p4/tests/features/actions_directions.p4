// A direct call of an action copies as a function does.
#include "include/values.p4"

CONTROL(Work) {
    action change(in bit<8> x, out bit<8> y, inout bit<8> z) {
        y = x + 1;
        z = z + x;
    }

    apply {
        s.egress_spec = 1;
        bit<8> y; change(h.v.a, y, h.v.b); h.v.c = (bit<16>) y;
    }
}

SWITCH(Work)
