// Constant entries with data, and several actions.
#include "include/values.p4"

CONTROL(Work) {
    action clear() {
        h.v.c = 0;
    }

    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            set;
            clear;
            NoAction;
        }
        const entries = {
            1 : set(0x101);
            2 : clear();
            3 : NoAction();
        }
        const default_action = set(0xdd);
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
