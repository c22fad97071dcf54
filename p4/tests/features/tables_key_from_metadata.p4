// A key that an earlier table put into metadata.
#define METADATA bit<4> class;
#include "include/values.p4"

CONTROL(Work) {
    action put(bit<4> class) {
        m.class = class;
    }

    table classify {
        key = {
            h.v.a : exact;
        }
        actions = {
            put;
        }
        const entries = {
            7 : put(3);
        }
        const default_action = put(0);
    }

    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            m.class : exact;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdddd);
        const entries = {
            3 : set(0x33);
        }
    }

    apply {
        s.egress_spec = 1;
        classify.apply();
        t.apply();
    }
}

SWITCH(Work)
