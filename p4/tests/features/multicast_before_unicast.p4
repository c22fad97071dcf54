// With a group and a port, the group decides.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 4;
        s.mcast_grp = 2;
    }
}

SWITCH(Work)
