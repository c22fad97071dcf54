// A parameter with a default may be left out.
#include "include/values.p4"

bit<8> plus(in bit<8> x, in bit<8> y = 5) {
    return x + y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = plus(h.v.a); h.v.b = plus(h.v.b, 1);
    }
}

SWITCH(Work)
