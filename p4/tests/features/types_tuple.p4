// Tuples are read by constant index.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        tuple<bit<8>, bit<16>> x = {h.v.b, h.v.c + 1};
        h.v.a = x[0];
        h.v.d = x[1] ++ x[1];
        if (x == {h.v.b, 16w8}) { h.v.d = 0; }
    }
}

SWITCH(Work)
