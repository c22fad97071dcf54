// Without a default action a miss does nothing.
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
        size = 4;
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
