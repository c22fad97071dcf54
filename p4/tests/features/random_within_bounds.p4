// random gives numbers from low to high; of one number, that one.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        random(h.v.a, 8w5, 8w5);
        bit<16> n;
        random(n, 16w10, 16w20);
        h.v.b = n >= 10 && n <= 20 ? 8w1 : 8w0;
        random(n, 16w0, 16w0xffff);
        h.v.c = n & 0;
    }
}

SWITCH(Work)
