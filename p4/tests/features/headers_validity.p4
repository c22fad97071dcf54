// setValid, setInvalid and isValid; only valid headers are sent.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.v.a == 1) {
            h.v.setInvalid();
        }
        if (!h.v.isValid()) {
            h.v.setValid();
            h.v.a = 0xaa;
            h.v.b = 1;
            h.v.c = 2;
            h.v.d = 3;
        }
        if (h.v.a == 2) {
            h.v.setInvalid();
        }
    }
}

SWITCH(Work)
