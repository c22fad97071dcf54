// A register of each control.
#include "include/values.p4"

CONTROL(Work) {
    register<bit<8>>(1) r;

    apply {
        s.egress_spec = 1;
        bit<8> n; r.read(n, 0); r.write(0, n + 1); h.v.a = n;
    }
}

CONTROL(After) {
    register<bit<8>>(1) r;

    apply {
        bit<8> n;
        r.read(n, 0);
        r.write(0, n + 2);
        h.v.b = n + 0x80;
    }
}

SWITCH_WITH_EGRESS(Work, After)
