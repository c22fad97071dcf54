// All keys must hold.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : exact;
            h.v.d : exact;
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
