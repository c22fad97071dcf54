// Unary minus on bit<8> is the two's complement.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = -h.v.a;
    }
}

SWITCH(Work)
