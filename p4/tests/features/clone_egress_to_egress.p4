// A clone of egress carries the packet as egress left it, and goes through egress once more, as type 2.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
    }
}

CONTROL(After) {
    apply {
        if (s.instance_type == 0) {
            clone(CloneType.E2E, 5);
            h.v.b = h.v.b + 0x10;
        } else {
            h.v.b = h.v.b + 0x20;
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
