// digest tells the control plane; the packet goes on.
#include "include/values.p4"

struct told_t {
    bit<8> x;
    bit<16> y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        digest<told_t>(1, {h.v.a, h.v.c});
    }
}

SWITCH(Work)
