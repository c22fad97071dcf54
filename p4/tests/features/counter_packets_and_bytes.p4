// A counter counts packets and their bytes; 8 bytes here, and 10.
#include "include/values.p4"

CONTROL(Work) {
    counter(4, CounterType.packets_and_bytes) c;

    apply {
        s.egress_spec = 1;
        c.count((bit<32>) h.v.a);
    }
}

SWITCH(Work)
