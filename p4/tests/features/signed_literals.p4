// Literals of signed types.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<8> x = -8s5; int<8> y = 8s0x7F; h.v.a = (bit<8>) x; h.v.b = (bit<8>) (y + x);
    }
}

SWITCH(Work)
