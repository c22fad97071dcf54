// From weak to strong: ?:, ||, &&, == !=, < > <= >=, |, ^, &, shifts, + ++ |+|, *, casts - ! ~; all group to the left.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> a = h.v.a;
        bit<8> b = h.v.b;
        bool one = a == 1;
        bool seven = b == 7;
        h.v.c = 0;
        h.v.c[0:0] = (bit<1>)(one ? seven : b == 9);
        h.v.c[1:1] = (bit<1>)(one ? false : seven ? a == 3 : one || a == 5);
        h.v.c[2:2] = (bit<1>)(one || seven && b == 9);
        h.v.c[3:3] = (bit<1>)(a | 1 ^ b & 3 == 3);
        h.v.c[4:4] = (bit<1>)((bit<4>)a ++ 4w1 == 8w0x11);
        h.v.c[5:5] = (bit<1>)(-a + 1 == 0);
        h.v.c[6:6] = (bit<1>)(a << 1 + 1 == 4);
        h.v.c[7:7] = (bit<1>)(!one == seven);
        h.v.c[8:8] = (bit<1>)(a < b == seven);
        h.v.c[9:9] = (bit<1>)(8w250 |+| a + 7 == 6);
        h.v.c[10:10] = (bit<1>)(20 - a - b * 2 == 5);
    }
}

SWITCH(Work)
