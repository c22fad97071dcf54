// The list's values are those at the end of ingress, not of the call.
#define METADATA @field_list(1) bit<8> kept; bit<8> lost;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        m.kept = 1;
        clone_preserving_field_list(CloneType.I2E, 5, 1);
        m.kept = 2;
    }
}

CONTROL(After) {
    apply {
        h.v.b = m.kept;
    }
}

SWITCH_WITH_EGRESS(Work, After)
