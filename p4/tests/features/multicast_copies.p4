// Every port of every node of the group gets a copy, the packet's own port included; egress_rid is the node's.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.mcast_grp = (bit<16>) h.v.a;
    }
}

CONTROL(After) {
    apply {
        h.v.b = (bit<8>) s.egress_rid;
        h.v.c = (bit<16>) s.egress_port;
        h.v.d = s.instance_type;
    }
}

SWITCH_WITH_EGRESS(Work, After)
