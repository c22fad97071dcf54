// A control without constructor parameters may be applied by its type.
#include "include/values.p4"

control Twice(inout bit<8> x) {
    apply {
        x = x + x;
    }
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        Twice.apply(h.v.a); Twice.apply(h.v.b);
    }
}

SWITCH(Work)
