// Parameters without direction come from the table's entry.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<8> x, bit<16> y) {
        h.v.b = x;
        h.v.c = y;
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
