// int has any size while the program is compiled; / and % are exact there.
#include "include/values.p4"

const int BIG = 1 << 100;

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = BIG / (1 << 98);
        h.v.b = BIG % 251;
        h.v.c = (17 / 5) * 100 + 17 % 5;
        h.v.d = (BIG >> 90) - 1;
    }
}

SWITCH(Work)
