// Constructor arguments may be computed from constants; they decide what is compiled.
#include "include/values.p4"

const bit<16> STEP = 3;

control Change(inout bit<16> x)(bool up, bit<16> by) {
    apply {
        if (up) {
            x = x + by;
        } else {
            x = x - by;
        }
    }
}

CONTROL(Work) {
    Change(true, 1) one;
    Change(by = STEP, up = false) two;

    apply {
        s.egress_spec = 1;
        one.apply(h.v.c); two.apply(h.v.d[15:0]);
    }
}

SWITCH(Work)
