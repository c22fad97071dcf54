// Entries in the program: the first that holds wins.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : ternary;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            0x0f &&& 0x0f : set(1);
            0x10 &&& 0xf0 : set(2);
            _ : set(3);
        }
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
