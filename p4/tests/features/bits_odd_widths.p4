// Widths that are no multiples of 8 wrap at their own size.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<3> x = h.v.a[2:0];
        bit<5> y = h.v.a[7:3];
        x = x + 3;
        y = y + 20;
        h.v.a = y ++ x;
        bit<1> z = h.v.b[0:0];
        z = z + 1;
        h.v.b = 7w0 ++ z;
    }
}

SWITCH(Work)
