// Arguments are copied out in order of the parameters, so the last one wins.
#include "include/values.p4"

void both(out bit<8> x, out bit<8> y) {
    x = 1;
    y = 2;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        both(h.v.a, h.v.a);
    }
}

SWITCH(Work)
