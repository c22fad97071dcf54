// truncate sets how many bytes leave at most.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        truncate((bit<32>) h.v.a);
    }
}

SWITCH(Work)
