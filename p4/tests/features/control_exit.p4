// exit ends the whole ingress, also from within an inner control; what was written stays.
#include "include/values.p4"

control Inner(inout headers h) {
    apply {
        if (h.v.a == 1) {
            h.v.c = 7;
            exit;
        }
    }
}

CONTROL(Work) {
    Inner() inner;

    apply {
        s.egress_spec = 1;
        h.v.b = 1;
        inner.apply(h);
        h.v.d = 5;
    }
}

SWITCH(Work)
