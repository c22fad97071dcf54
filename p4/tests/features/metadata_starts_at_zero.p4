// All metadata are zero at first, the standard ones too; what one packet wrote, the next doesn't see.
#define METADATA bit<8> x;
#include "include/values.p4"

CONTROL(Work) {
    apply {
        h.v.a = m.x;
        h.v.b = (bit<8>) s.checksum_error;
        h.v.c = s.mcast_grp | s.egress_rid | (bit<16>) s.egress_spec | (bit<16>) s.egress_port;
        h.v.d = s.instance_type | (bit<32>) s.priority;
        m.x = 5;
        s.egress_spec = 1;
    }
}

SWITCH(Work)
