// A meter of bytes takes as many tokens as the packet is long: 8, then 10 of 20.
#include "include/values.p4"

CONTROL(Work) {
    meter(1, MeterType.bytes) k;

    apply {
        s.egress_spec = 1;
        k.execute_meter(0, h.v.b);
    }
}

SWITCH(Work)
