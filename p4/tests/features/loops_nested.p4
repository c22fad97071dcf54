// break and continue are of the innermost loop.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<16> n = 0;
        for (bit<8> i = 0; i < 3; i = i + 1) {
            for (bit<8> j = 0; j < 4; j = j + 1) {
                if (j > i) {
                    break;
                }
                n = n + 1;
            }
            n = n + 0x10;
        }
        h.v.c = n;
    }
}

SWITCH(Work)
