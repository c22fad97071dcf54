// Parameters with a direction are bound in the table's list of actions, the rest come from entries.
#include "include/values.p4"

CONTROL(Work) {
    action move(in bit<8> from, inout bit<16> to, bit<8> by) {
        to = (bit<16>) (from + by);
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            move(h.v.b, h.v.c);
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
