// mark_to_drop in egress.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
    }
}

CONTROL(After) {
    apply {
        if (h.v.a == 1) {
            mark_to_drop(s);
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
