// hit and miss of apply's result.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
    }

    apply {
        s.egress_spec = 1;
        if (t.apply().hit) {
            h.v.b = 1;
        } else {
            h.v.b = 2;
        }
    }
}

SWITCH(Work)
