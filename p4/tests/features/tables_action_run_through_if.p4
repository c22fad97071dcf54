// apply in a condition inside a condition; each table runs once a packet.
#include "include/values.p4"

CONTROL(Work) {
    action mark_first() {
        h.v.b = 1;
    }

    action mark_second() {
        h.v.c = 2;
    }

    table first {
        key = {
            h.v.a : exact;
        }
        actions = {
            mark_first;
            NoAction;
        }
        const entries = {
            1 : mark_first();
        }
        const default_action = NoAction();
    }

    table second {
        key = {
            h.v.a : exact;
        }
        actions = {
            mark_second;
            NoAction;
        }
        const entries = {
            2 : mark_second();
        }
        const default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        if (h.v.a == 1 && first.apply().hit || second.apply().hit) {
            h.v.d = 1;
        }
    }
}

SWITCH(Work)
