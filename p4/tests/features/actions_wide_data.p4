// Action data wider than 64 bits.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<128> x) {
        h.v.b = x[119:112];
        h.v.c = x[47:32];
        h.v.d = x[63:32];
    }

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
