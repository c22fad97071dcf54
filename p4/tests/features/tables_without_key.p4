// A table without key always runs its default action, and misses.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        actions = {
            set;
        }
        default_action = set(5);
    }

    apply {
        s.egress_spec = 1;
        if (t.apply().hit) {
            h.v.b = 1;
        } else {
            h.v.b = 2;
        }
    }
}

SWITCH(Work)
