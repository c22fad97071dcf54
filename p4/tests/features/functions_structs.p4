// Structs and headers as parameters and results.
#include "include/values.p4"

struct pair_t {
    bit<8> x;
    bit<8> y;
}

pair_t swap(in pair_t p) {
    return {p.y, p.x};
}

void bump(inout values_t v) {
    v.c = v.c + 1;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        pair_t p = swap({h.v.a, h.v.b}); h.v.a = p.x; h.v.b = p.y; bump(h.v);
    }
}

SWITCH(Work)
