// An unsigned shift to the right brings in zeros.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.a >> 3; h.v.c = h.v.c >> h.v.b;
    }
}

SWITCH(Work)
