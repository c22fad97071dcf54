// A packet nobody decides about leaves by port 0.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        h.v.a = 1;
    }
}

SWITCH(Work)
