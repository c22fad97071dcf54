// & binds more strongly than ==, shifts more weakly than +, ++ as +.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = 0;
        if (h.v.a & 0x0f == 5) { h.v.c = 1; }
        h.v.b = 1 << 1 + 2;
        h.v.d = 2 + h.v.d << 4;
    }
}

SWITCH(Work)
