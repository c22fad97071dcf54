// A control's variables are initialised again for every packet.
#include "include/values.p4"

CONTROL(Work) {
    bit<8> n = 2;

    apply {
        s.egress_spec = 1;
        n = n + h.v.a; h.v.b = n;
    }
}

SWITCH(Work)
