// Arguments by name, in any order.
#include "include/values.p4"

bit<8> minus(in bit<8> x, in bit<8> y) {
    return x - y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = minus(y = h.v.b, x = h.v.a);
    }
}

SWITCH(Work)
