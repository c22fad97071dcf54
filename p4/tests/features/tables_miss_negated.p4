// miss in a condition, and !hit of a second table.
#include "include/values.p4"

CONTROL(Work) {
    table u {
        key = {
            h.v.b : exact;
        }
        actions = {
            NoAction;
        }
        const entries = {
            10 : NoAction();
        }
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
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            1 : set(7);
        }
    }

    apply {
        s.egress_spec = 1;
        if (t.apply().miss) {
            h.v.b = h.v.b + 1;
            if (!u.apply().hit) {
                h.v.d = 0x10;
            }
        }
    }
}

SWITCH(Work)
