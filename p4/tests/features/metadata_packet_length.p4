// packet_length counts the bytes that came in.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.d = s.packet_length;
    }
}

SWITCH(Work)
