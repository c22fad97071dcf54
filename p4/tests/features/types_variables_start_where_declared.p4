// A variable of an inner block hides the outer one until the block ends.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> x = 1;
        {
            bit<8> x = 2;
            x = x + h.v.a;
            h.v.b = x;
        }
        h.v.a = x;
    }
}

SWITCH(Work)
