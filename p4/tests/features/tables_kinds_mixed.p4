// exact, ternary, range and lpm keys in one table.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : exact;
            h.v.b : ternary;
            h.v.c : range;
            h.v.d : lpm;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            (1, 0x10 &&& 0xf0, 5 .. 9, 0x0a000000 &&& 0xff000000) : set(1);
            (1, _, _, _) : set(2);
        }
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
