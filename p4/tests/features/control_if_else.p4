// The branches of if, else if and else.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        if (h.v.a == 1) {
            h.v.b = 10;
        } else if (h.v.a == 2)
            h.v.b = 20;
        else {
            h.v.b = 30;
        }
        if (h.v.a == 9) if (h.v.b == 30) h.v.c = 1; else h.v.c = 2;
    }
}

SWITCH(Work)
