// Structs nest, are copied whole, and compare field by field.
#include "include/values.p4"

struct inner_t {
    bit<8> p;
    bit<8> q;
}

struct outer_t {
    inner_t inside;
    bool flag;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        outer_t x = {{h.v.a, h.v.b}, true};
        outer_t y = x;
        y.inside.p = y.inside.p + 1;
        h.v.c = 0;
        if (x == y) { h.v.c = h.v.c | 1; }
        y.inside.p = h.v.a;
        if (x == y) { h.v.c = h.v.c | 2; }
        y.flag = false;
        if (x != y) { h.v.c = h.v.c | 4; }
        h.v.d = y.inside.p ++ y.inside.q ++ x.inside.p ++ x.inside.q;
    }
}

SWITCH(Work)
