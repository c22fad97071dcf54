// A parameter without direction may be given in a direct call, too.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<8> x, bit<16> y) {
        h.v.b = x;
        h.v.c = y;
    }

    apply {
        s.egress_spec = 1;
        set(h.v.a, 16w7);
    }
}

SWITCH(Work)
