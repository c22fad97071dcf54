// Entries of a table with an action profile name members, which several entries share.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    action_profile(8) choices;

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            set;
            NoAction;
        }
        implementation = choices;
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
