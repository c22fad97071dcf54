// Keys wider than 64 bits.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.d ++ h.v.d ++ h.v.d : exact @name("wide");
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
