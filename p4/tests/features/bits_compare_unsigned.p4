// The order of bit<8> is unsigned.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = 0;
        if (h.v.a < h.v.b) { h.v.c = h.v.c | 1; }
        if (h.v.a <= h.v.b) { h.v.c = h.v.c | 2; }
        if (h.v.a > h.v.b) { h.v.c = h.v.c | 4; }
        if (h.v.a >= h.v.b) { h.v.c = h.v.c | 8; }
        if (h.v.a == h.v.b) { h.v.c = h.v.c | 0x10; }
        if (h.v.a != h.v.b) { h.v.c = h.v.c | 0x20; }
    }
}

SWITCH(Work)
