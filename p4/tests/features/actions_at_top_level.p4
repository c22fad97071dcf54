// An action outside controls, given its data by parameters.
#include "include/values.p4"

action increment(inout bit<8> x) {
    x = x + 1;
}

CONTROL(Work) {
    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            increment(h.v.b);
            NoAction;
        }
        const entries = {
            1 : increment(h.v.b);
        }
        const default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
