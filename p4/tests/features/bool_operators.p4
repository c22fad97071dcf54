// !, && and || on variables.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bool x = h.v.a == 1;
        bool y = h.v.b == 1;
        h.v.c = 0;
        if (x && y) { h.v.c = h.v.c | 1; }
        if (x || y) { h.v.c = h.v.c | 2; }
        if (!x) { h.v.c = h.v.c | 4; }
        if (x != y) { h.v.c = h.v.c | 8; }
    }
}

SWITCH(Work)
