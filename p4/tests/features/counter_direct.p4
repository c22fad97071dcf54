// A direct counter counts the hits of each entry.
#include "include/values.p4"

CONTROL(Work) {
    direct_counter(CounterType.packets_and_bytes) c;

    action mark() {
        c.count();
        h.v.b = 1;
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            mark;
            NoAction;
        }
        default_action = NoAction();
        counters = c;
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
