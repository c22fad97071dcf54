// switch on a number: cases are constants, the first body after a match is run.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        switch (h.v.a) {
            1: {
                h.v.b = 1;
            }
            2:
            0x10: {
                h.v.b = 2;
            }
            default: {
                h.v.b = 3;
            }
        }
    }
}

SWITCH(Work)
