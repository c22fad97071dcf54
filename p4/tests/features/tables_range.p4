// range: both ends included; entries in the program, the first that holds wins.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : range;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            5 .. 10 : set(1);
            8 .. 20 : set(2);
            30 : set(3);
        }
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
