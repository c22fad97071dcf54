// A direct meter has a cell for each entry.
#include "include/values.p4"

CONTROL(Work) {
    direct_meter<bit<8>>(MeterType.packets) k;

    action mark() {
        k.read(h.v.b);
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
        meters = k;
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
