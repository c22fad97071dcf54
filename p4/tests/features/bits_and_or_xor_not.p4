// The bitwise operators.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.d = (h.v.a & h.v.b) ++ (h.v.a | h.v.b) ++ (h.v.a ^ h.v.b) ++ ~h.v.a;
    }
}

SWITCH(Work)
