// A cast of int<8> to int<16> copies the sign, one of bit<8> does not.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = (bit<16>) (int<16>) (int<8>) h.v.a;
        h.v.d = (bit<32>) (int<32>) (int<16>) (bit<16>) h.v.b;
    }
}

SWITCH(Work)
