// Numbers wider than a machine word.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<128> x = h.v.d ++ h.v.d ++ h.v.d ++ h.v.d;
        x = x + 1;
        bit<128> y = x << 65;
        h.v.d = y[127:96];
        h.v.c = x[47:32];
    }
}

SWITCH(Work)
