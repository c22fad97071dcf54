// While a function runs, its inout parameters are copies.
#include "include/values.p4"

void add_twice(inout bit<8> x, inout bit<8> y) {
    x = x + x;
    y = y + x;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        add_twice(h.v.a, h.v.a);
    }
}

SWITCH(Work)
