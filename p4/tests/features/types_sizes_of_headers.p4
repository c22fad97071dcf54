// minSizeInBits and minSizeInBytes are known when the program is compiled.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.minSizeInBytes(); h.v.b = h.v.minSizeInBits(); h.v.c = h.v.maxSizeInBytes();
    }
}

SWITCH(Work)
