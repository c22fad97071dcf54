// Entries that may change, with written priorities: the greatest number wins.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : ternary;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        size = 16;
        entries = {
            const priority = 10 : 0x10 &&& 0xf0 : set(1);
            priority = 30 : 0x11 : set(2);
            priority = 20 : 0x01 &&& 0x0f : set(3);
        }
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
