// Keys may be expressions and slices; @name gives them a name for the control plane.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a + h.v.b : exact @name("sum");
            h.v.d[31:28] : exact @name("top");
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
