// Only the side that is chosen is evaluated.
#include "include/values.p4"

bit<16> counted(inout bit<8> calls, in bit<8> step) {
    calls = calls + step;
    return (bit<16>) step;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> calls = 0;
        h.v.c = h.v.a == 0 ? counted(calls, 1) : counted(calls, 2);
        h.v.b = calls;
    }
}

SWITCH(Work)
