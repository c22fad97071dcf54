// The product of two bit<16> keeps the low 16 bits.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = h.v.c * 16w300;
    }
}

SWITCH(Work)
