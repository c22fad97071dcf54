// Each instance of a control has tables of its own, named after the instance.
#include "include/values.p4"

control Look(in bit<8> x, inout bit<8> y) {
    action set(bit<8> z) {
        y = z;
    }

    table t {
        key = {
            x : exact;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        t.apply();
    }
}

CONTROL(Work) {
    Look() one;
    Look() two;

    apply {
        s.egress_spec = 1;
        one.apply(h.v.a, h.v.b); two.apply(h.v.a, h.v.c[7:0]);
    }
}

SWITCH(Work)
