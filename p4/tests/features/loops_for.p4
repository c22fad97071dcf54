// A for loop with a condition and a step.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<16> sum = 0;
        for (bit<8> i = 0; i < h.v.a; i = i + 1) {
            sum = sum + (bit<16>) i;
        }
        h.v.c = sum;
    }
}

SWITCH(Work)
