// {name = value} in any order; ... leaves the other fields at zero.
#include "include/values.p4"

struct three_t {
    bit<8> p;
    bit<8> q;
    bit<8> r;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        three_t x = {r = 3, p = h.v.a, q = h.v.b};
        three_t y = (three_t) {q = 9, ...};
        h.v.d = x.p ++ x.q ++ x.r ++ y.q;
        h.v.c = y.p ++ y.r;
    }
}

SWITCH(Work)
