// A typedef is another name of the same type.
#include "include/values.p4"

typedef bit<8> byte;
typedef byte octet;

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        byte x = h.v.a; octet y = x; h.v.b = y + 1;
    }
}

SWITCH(Work)
