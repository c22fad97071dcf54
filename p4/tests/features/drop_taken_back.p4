// A port chosen after mark_to_drop saves the packet.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        mark_to_drop(s);
        if (h.v.a == 1) {
            s.egress_spec = 1;
        }
    }
}

SWITCH(Work)
