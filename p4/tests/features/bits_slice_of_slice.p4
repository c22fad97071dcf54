// Slices of slices and of expressions.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.d[23:8][11:4]; h.v.b = (h.v.c + 2)[15:8];
    }
}

SWITCH(Work)
