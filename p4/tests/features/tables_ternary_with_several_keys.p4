// Masks on two keys; a key left out matches anything.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : ternary;
            h.v.b : ternary;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
