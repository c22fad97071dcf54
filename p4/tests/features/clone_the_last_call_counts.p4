// Of two clones in one pass, the last one is made.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        clone(CloneType.I2E, 5);
        clone(CloneType.I2E, 6);
    }
}

SWITCH(Work)
