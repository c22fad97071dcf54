// A function with a type parameter, inferred and written.
#include "include/values.p4"

T pick<T>(in bool first, in T x, in T y) {
    if (first) {
        return x;
    }
    return y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = pick(true, h.v.a, h.v.b); h.v.c = pick<bit<16>>(false, h.v.c, 16w7);
    }
}

SWITCH(Work)
