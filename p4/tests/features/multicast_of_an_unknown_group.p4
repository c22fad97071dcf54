// A group that nobody made has no copies.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        s.mcast_grp = (bit<16>) h.v.a;
    }
}

SWITCH(Work)
