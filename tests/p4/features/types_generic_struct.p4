// A struct with type parameters.
#include "include/values.p4"

struct both_t<A, B> {
    A first;
    B second;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        both_t<bit<8>, bit<16>> x = {h.v.a, h.v.c};
        both_t<bit<16>, both_t<bit<8>, bit<16>>> y = {0x55, x};
        h.v.d = y.second.second ++ y.first;
    }
}

SWITCH(Work)
