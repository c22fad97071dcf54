// Functions in functions, and arguments evaluated from left to right.
#include "include/values.p4"

bit<8> next(inout bit<8> n) {
    n = n + 1;
    return n;
}

bit<16> join(in bit<8> x, in bit<8> y) {
    return x ++ y;
}

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> n = 0;
        h.v.c = join(next(n), next(n));
        h.v.a = n;
    }
}

SWITCH(Work)
