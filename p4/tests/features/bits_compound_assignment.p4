// x op= y is x = x op y.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a += 1;
        h.v.b -= 1;
        h.v.c <<= 4;
        h.v.c |= 3;
        h.v.d &= 0xffff0000;
        h.v.d ^= 0x11;
        h.v.d >>= 1;
        h.v.a |+|= 254;
        h.v.b |-|= 250;
        h.v.c *= 2;
    }
}

SWITCH(Work)
