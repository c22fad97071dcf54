// |+| and |-| stop at the ends of bit<8>.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> x = h.v.a; h.v.a = x |+| h.v.b; h.v.b = x |-| h.v.b;
    }
}

SWITCH(Work)
