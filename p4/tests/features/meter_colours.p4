// A meter without rates says green (0). With bursts of 1 and 2 packets and hardly any rate: green, yellow, red,
// red.
#include "include/values.p4"

CONTROL(Work) {
    meter(2, MeterType.packets) k;

    apply {
        s.egress_spec = 1;
        k.execute_meter((bit<32>) h.v.a, h.v.b);
    }
}

SWITCH(Work)
