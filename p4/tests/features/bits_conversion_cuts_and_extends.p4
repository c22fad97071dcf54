// A cast to fewer bits keeps the low ones; to more bits it fills with zeros.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = (bit<8>) h.v.c; h.v.d = (bit<32>) h.v.b;
    }
}

SWITCH(Work)
