// return inside a loop leaves the function.
#include "include/values.p4"

bit<8> first_bit(in bit<32> x) {
    for (bit<8> i = 0; i < 32; i = i + 1) {
        if ((x >> i) & 1 == 1) {
            return i;
        }
    }
    return 255;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = first_bit(h.v.d);
    }
}

SWITCH(Work)
