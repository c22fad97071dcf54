// A session that nobody made has no clone.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        clone(CloneType.I2E, 6);
    }
}

SWITCH(Work)
