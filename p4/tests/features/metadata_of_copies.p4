// What ingress wrote into metadata, all copies of a multicast group see.
#define METADATA bit<8> x;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.mcast_grp = 1;
        m.x = h.v.a + 1;
    }
}

CONTROL(After) {
    apply {
        h.v.b = m.x;
        m.x = 99;
    }
}

SWITCH_WITH_EGRESS(Work, After)
