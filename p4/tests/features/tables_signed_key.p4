// A signed key matches its own negative values.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            (int<8>) h.v.a : exact @name("signed");
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            -1 : set(1);
            5 : set(2);
        }
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
