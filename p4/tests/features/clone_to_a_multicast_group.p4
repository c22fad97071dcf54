// A session may lead to a group.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        clone(CloneType.I2E, 5);
    }
}

CONTROL(After) {
    apply {
        h.v.b = (bit<8>) s.egress_rid;
    }
}

SWITCH_WITH_EGRESS(Work, After)
