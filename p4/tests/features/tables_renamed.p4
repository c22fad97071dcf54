// @name gives a table and an action their names for the control plane.
#include "include/values.p4"

CONTROL(Work) {
    @name("put")
    action set(bit<16> x) {
        h.v.c = x;
    }

    @name("outside")
    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
