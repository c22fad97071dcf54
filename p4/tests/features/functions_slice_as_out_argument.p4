// A slice may be an out or inout argument.
#include "include/values.p4"

void increment(inout bit<4> x) {
    x = x + 1;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        increment(h.v.c[7:4]);
    }
}

SWITCH(Work)
