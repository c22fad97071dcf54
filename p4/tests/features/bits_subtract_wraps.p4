// bit<8> - bit<8> is modulo 256.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.a - h.v.b;
    }
}

SWITCH(Work)
