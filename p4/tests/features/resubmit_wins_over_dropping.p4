// resubmit comes before everything else that ingress decides.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        if (s.instance_type == 6) {
            s.egress_spec = 1;
            h.v.b = 6;
        } else {
            resubmit_preserving_field_list(0);
            mark_to_drop(s);
        }
    }
}

SWITCH(Work)
