// Counters of packets only, and of bytes only.
#include "include/values.p4"

CONTROL(Work) {
    counter(1, CounterType.packets) p;
    counter(2, CounterType.bytes) b;

    apply {
        s.egress_spec = 1;
        p.count(0); b.count(1);
    }
}

SWITCH(Work)
