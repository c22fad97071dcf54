// Assigning a slice leaves the other bits.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.d[15:8] = h.v.a; h.v.d[31:31] = 1; h.v.c[3:0] = h.v.b[7:4];
    }
}

SWITCH(Work)
