// resubmit takes the packet as it came in through the parser and ingress again, as type 6.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (s.instance_type == 0) {
            h.v.a = 0xff;
            resubmit_preserving_field_list(0);
        } else {
            h.v.d = s.instance_type;
        }
    }
}

SWITCH(Work)
