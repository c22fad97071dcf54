// egress_spec chooses the port; ingress_port says where the packet came from.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = h.v.a == 1 ? 9w2 : 9w3;
        h.v.c = (bit<16>) s.ingress_port;
    }
}

SWITCH(Work)
