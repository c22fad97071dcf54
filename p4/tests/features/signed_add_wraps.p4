// int<8> is two's complement and wraps.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        int<8> x = (int<8>) h.v.a; x = x + (int<8>) h.v.b; h.v.a = (bit<8>) x;
    }
}

SWITCH(Work)
