// mark_to_drop in ingress: the packet is gone.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.v.a == 1) {
            mark_to_drop(s);
        }
    }
}

SWITCH(Work)
