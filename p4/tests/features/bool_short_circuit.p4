// The right side of && and || is evaluated only where it decides.
#include "include/values.p4"

bool counted(inout bit<16> calls) {
    calls = calls + 1;
    return true;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<16> calls = 0;
        bool x = h.v.a == 1 && counted(calls);
        bool y = h.v.b == 1 || counted(calls);
        h.v.c = calls;
        if (x) { h.v.d = 1; }
        if (y) { h.v.d = h.v.d | 2; }
    }
}

SWITCH(Work)
