// A struct with type parameters.
#include "include/values.p4"

struct both_t<A, B> {
    A first;
    B second;
}

struct box_t<T> {
    T inside;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        both_t<bit<8>, bit<16>> x = {h.v.a, h.v.c};
        both_t<bit<16>, bit<8>> y = {0x55, h.v.a};
        box_t<both_t<bit<8>, bit<16>>> z = {x};
        h.v.d = z.inside.second ++ y.first;
        h.v.b = y.second;
    }
}

SWITCH(Work)
