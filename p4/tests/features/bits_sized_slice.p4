// x[l +: w] are the w bits from bit l up.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.d[8 +: 8]; h.v.d[28 +: 4] = h.v.b[0 +: 4];
    }
}

SWITCH(Work)
