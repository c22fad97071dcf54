// A table in egress.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = (bit<9>) h.v.a;
    }
}

CONTROL(After) {
    action set(bit<8> x) {
        h.v.b = x;
    }

    table t {
        key = {
            s.egress_port : exact;
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

SWITCH_WITH_EGRESS(Work, After)
