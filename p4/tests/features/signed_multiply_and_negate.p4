// Products and negation of int<16>.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<16> x = (int<16>) h.v.c;
        h.v.d = (bit<32>) ((int<32>) x * -3);
        h.v.c = (bit<16>) -x;
    }
}

SWITCH(Work)
