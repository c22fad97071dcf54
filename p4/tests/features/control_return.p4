// return leaves the control that it stands in, and the caller goes on.
#include "include/values.p4"

control Inner(inout headers h) {
    apply {
        if (h.v.a == 1) {
            return;
        }
        h.v.b = 1;
    }
}

CONTROL(Work) {
    Inner() inner;

    apply {
        s.egress_spec = 1;
        inner.apply(h);
        h.v.c = h.v.c + 1;
        if (h.v.a == 2) {
            return;
        }
        h.v.d = 5;
    }
}

SWITCH(Work)
