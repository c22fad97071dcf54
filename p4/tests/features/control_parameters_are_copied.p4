// A control's parameters are copied in and out as a function's.
#include "include/values.p4"

control Mix(inout bit<8> x, in bit<8> y, out bit<8> z) {
    apply {
        x = x + 1;
        z = x + y;
    }
}

CONTROL(Work) {
    Mix() mix;

    apply {
        s.egress_spec = 1;
        mix.apply(h.v.a, h.v.a, h.v.b);
    }
}

SWITCH(Work)
