// recirculate takes the packet as it was sent through everything again, as type 4.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = h.v.d == 0xff ? 9w2 : 9w1;
        h.v.b = h.v.b + 1;
        h.v.d = s.instance_type;
    }
}

CONTROL(After) {
    apply {
        if (h.v.a != 0) {
            h.v.a = h.v.a - 1;
            recirculate_preserving_field_list(0);
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
