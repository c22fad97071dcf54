// A new type converts to and from its origin by casts, and compares with itself.
#include "include/values.p4"

type bit<8> index_t;

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        index_t x = (index_t) h.v.a;
        index_t y = (index_t) h.v.b;
        if (x == y) { h.v.c = 1; } else { h.v.c = 2; }
        h.v.d = (bit<32>) (bit<8>) x;
    }
}

SWITCH(Work)
