// static_assert is checked when the program is compiled, and gives true.
#include "include/values.p4"

const bit<8> WIDE = 4;

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bool fine = static_assert(WIDE > 3, "too narrow"); if (fine) { h.v.a = 1; }
    }
}

SWITCH(Work)
