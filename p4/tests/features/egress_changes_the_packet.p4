// Egress sees what ingress wrote, metadata too, and the port as egress_port.
#define METADATA bit<8> x;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 2;
        m.x = h.v.a + 1;
    }
}

CONTROL(After) {
    apply {
        h.v.b = m.x;
        h.v.c = (bit<16>) s.egress_port;
    }
}

SWITCH_WITH_EGRESS(Work, After)
