// Actions read and write the variables of their control.
#include "include/values.p4"

CONTROL(Work) {
    bit<8> n;

    action set() {
        n = h.v.a + 1;
    }

    action get() {
        h.v.b = n;
    }

    apply {
        s.egress_spec = 1;
        set(); n = n * 2; get();
    }
}

SWITCH(Work)
