// Egress drops the copy for the port that the packet came from.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.mcast_grp = 1;
    }
}

CONTROL(After) {
    apply {
        if (s.egress_port == s.ingress_port) {
            mark_to_drop(s);
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
