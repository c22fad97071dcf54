// The left side of op= may be a slice.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c[7:4] += 15; h.v.d[15:0] ^= h.v.c;
    }
}

SWITCH(Work)
