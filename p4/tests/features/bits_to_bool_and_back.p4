// bit<1> and bool convert into each other by casts.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bool odd = (bool) h.v.a[0:0];
        if (odd) { h.v.b = 1; } else { h.v.b = 2; }
        h.v.c = 15w0 ++ (bit<1>) (h.v.a > 4);
    }
}

SWITCH(Work)
