// out starts unset and is copied out, inout both ways, in is the function's own.
#include "include/values.p4"

void change(in bit<8> x, out bit<8> y, inout bit<8> z) {
    y = x + 3;
    z = x + z;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> x = h.v.a;
        bit<8> y = 1;
        bit<8> z = 2;
        change(x, y, z);
        h.v.d = x ++ y ++ z ++ h.v.a;
    }
}

SWITCH(Work)
