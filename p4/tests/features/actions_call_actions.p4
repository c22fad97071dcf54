// Actions call actions, each with its own return.
#include "include/values.p4"

CONTROL(Work) {
    action inner(in bit<8> x) {
        if (x == 2) {
            return;
        }
        h.v.b = 1;
    }

    action outer(in bit<8> x) {
        inner(x);
        h.v.c = 2;
    }

    apply {
        s.egress_spec = 1;
        outer(h.v.a);
    }
}

SWITCH(Work)
