// The time of ingress isn't after that of egress, and grows from packet to packet.
#include "include/values.p4"

CONTROL(Work) {
    register<bit<48>>(1) last;

    apply {
        s.egress_spec = 1;
        bit<48> before;
        last.read(before, 0);
        last.write(0, s.ingress_global_timestamp);
        if (s.ingress_global_timestamp > before) {
            h.v.a = 1;
        }
    }
}

CONTROL(After) {
    apply {
        if (s.egress_global_timestamp >= s.ingress_global_timestamp) {
            h.v.b = 2;
        }
    }
}

SWITCH_WITH_EGRESS(Work, After)
