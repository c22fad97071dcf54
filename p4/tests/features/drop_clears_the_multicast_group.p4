// mark_to_drop also sets mcast_grp to 0.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.mcast_grp = 1;
        if (h.v.a == 1) {
            mark_to_drop(s);
        }
    }
}

SWITCH(Work)
