// for (… in low .. high) visits both ends; an empty range has no turn.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<16> sum = 0;
        for (bit<8> i in 3 .. 6) {
            sum = sum + (bit<16>) i;
        }
        h.v.c = sum;
        bit<32> turns = 0;
        for (bit<8> i in h.v.a .. h.v.b) {
            turns = turns + 1;
        }
        h.v.d = turns;
    }
}

SWITCH(Work)
