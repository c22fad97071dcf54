// A shift by the width or more leaves nothing.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = h.v.a << 8; h.v.c = h.v.c >> h.v.b; h.v.d = h.v.d << h.v.b;
    }
}

SWITCH(Work)
