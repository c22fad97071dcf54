// Literals in all bases, with widths, signs and underscores.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.a = 8w0b1010_0101;
        h.v.b = 0o17;
        h.v.c = 16w0xBE_EF;
        h.v.d = 32w1_000_000 + 0d24;
    }
}

SWITCH(Work)
