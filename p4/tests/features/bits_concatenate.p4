// ++ puts the left operand into the high bits.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.d = h.v.b ++ h.v.c ++ h.v.a;
    }
}

SWITCH(Work)
