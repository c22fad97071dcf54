// Of the metadata only the list's fields are kept.
#define METADATA @field_list(1) bit<8> kept; bit<8> lost;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = m.kept ++ m.lost;
        m.kept = m.kept + 1;
        m.lost = m.lost + 1;
        if (m.kept < 4) {
            resubmit_preserving_field_list(1);
        }
    }
}

SWITCH(Work)
