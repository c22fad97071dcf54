// @tableonly and @defaultonly limit where an action may be used; both run as others do.
#include "include/values.p4"

CONTROL(Work) {
    action missed() {
        h.v.b = 0xee;
    }

    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            @tableonly set;
            @defaultonly missed;
        }
        default_action = missed();
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
