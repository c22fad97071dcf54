// An empty queue has depth 0 when the packet comes, and the packet waits no longer than a second.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        s.priority = 0;
    }
}

CONTROL(After) {
    apply {
        h.v.a = (bit<8>) s.enq_qdepth;
        if (s.deq_timedelta < 1000000) {
            h.v.b = 1;
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
