// A signed shift to the right brings in copies of the sign.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<8> x = (int<8>) h.v.a;
        h.v.a = (bit<8>) (x >> 2);
        h.v.c = (bit<16>) ((int<16>) h.v.c >> h.v.b);
    }
}

SWITCH(Work)
