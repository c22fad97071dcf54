// Two instances of a control have a register each, and constructor arguments of their own.
#include "include/values.p4"

control Count(inout bit<8> x)(bit<8> step) {
    register<bit<8>>(1) seen;

    apply {
        bit<8> n;
        seen.read(n, 0);
        n = n + step;
        seen.write(0, n);
        x = n;
    }
}

CONTROL(Work) {
    Count(1) first;
    Count(10) second;

    apply {
        s.egress_spec = 1;
        first.apply(h.v.a); second.apply(h.v.b); second.apply(h.v.c[7:0]);
    }
}

SWITCH(Work)
