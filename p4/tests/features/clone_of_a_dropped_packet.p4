// A packet that is dropped may still be cloned.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        clone(CloneType.I2E, 5);
        mark_to_drop(s);
    }
}

SWITCH(Work)
