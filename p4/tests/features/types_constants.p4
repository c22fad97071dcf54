// Constants of numbers, structs and lists, computed from one another.
#include "include/values.p4"

struct pair_t {
    bit<8> x;
    bit<8> y;
}

const bit<8> SEVEN = 7;
const bit<8> TWICE = SEVEN * 2;
const pair_t PAIR = {SEVEN, SEVEN + 2};
const tuple<bit<8>, bit<16>> WORDS = {1, 0x102};

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = TWICE; h.v.b = PAIR.y; h.v.c = WORDS[1];
    }
}

SWITCH(Work)
