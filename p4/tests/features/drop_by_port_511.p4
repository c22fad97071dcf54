// mark_to_drop is egress_spec 511, which a program may also write itself.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        mark_to_drop(s);
        h.v.c = (bit<16>) s.egress_spec;
        s.egress_spec = h.v.a == 1 ? 9w1 : 9w511;
    }
}

SWITCH(Work)
