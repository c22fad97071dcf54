// The fields of the list keep their value in the clone, others start at zero.
#define METADATA @field_list(1) bit<8> kept; bit<8> lost;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        m.kept = h.v.a + 1;
        m.lost = h.v.a + 2;
        clone_preserving_field_list(CloneType.I2E, 5, 1);
    }
}

CONTROL(After) {
    apply {
        h.v.c = m.kept ++ m.lost;
    }
}

SWITCH_WITH_EGRESS(Work, After)
