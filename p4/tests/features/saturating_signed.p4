// |+| and |-| stop at the ends of int<8>.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<8> x = (int<8>) h.v.a;
        int<8> y = (int<8>) h.v.b;
        h.v.a = (bit<8>) (x |+| y);
        h.v.b = (bit<8>) (x |-| y);
    }
}

SWITCH(Work)
