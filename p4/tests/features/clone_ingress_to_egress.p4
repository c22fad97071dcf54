// A clone of ingress carries the packet as it came in; its instance type is 1.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        clone(CloneType.I2E, 5);
        h.v.a = 0xaa;
    }
}

CONTROL(After) {
    apply {
        if (s.instance_type == 1) {
            h.v.b = 1;
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
