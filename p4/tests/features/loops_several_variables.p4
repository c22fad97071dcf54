// Several initialisers and steps, in order.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> last = 0;
        for (bit<8> i = 0, bit<8> j = 10; i < j; i = i + 1, j = j - 2) {
            last = j - i;
        }
        h.v.a = last;
    }
}

SWITCH(Work)
