// A value without a case does nothing; the subject is evaluated once.
#include "include/values.p4"

bit<8> next(inout bit<8> n) {
    n = n + 1;
    return n;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> n = 0;
        switch (next(n)) {
            2: {
                h.v.b = 2;
            }
            1: {
                h.v.b = 1;
            }
        }
        switch (h.v.a + 1) {
            7: {
                h.v.c = 7;
            }
        }
        h.v.a = n;
    }
}

SWITCH(Work)
