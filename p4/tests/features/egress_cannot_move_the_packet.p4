// egress_spec written in egress changes no port, unless it drops.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 2;
    }
}

CONTROL(After) {
    apply {
        s.egress_spec = 3;
    }
}

SWITCH_WITH_EGRESS(Work, After)
