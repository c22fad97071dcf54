// continue goes on with the step, break ends the loop.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<16> sum = 0;
        for (bit<8> i = 0; i < 10; i = i + 1) {
            if (i == h.v.a) {
                continue;
            }
            if (i == h.v.b) {
                break;
            }
            sum = sum + (bit<16>) i;
        }
        h.v.c = sum;
    }
}

SWITCH(Work)
