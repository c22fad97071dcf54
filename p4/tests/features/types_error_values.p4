// Errors are values of one type: they compare, and programs may declare more.
#include "include/values.p4"

error { Strange, Stranger }

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        error e = error.NoError;
        if (h.v.a == 1) { e = error.Strange; }
        if (h.v.a == 2) { e = error.NoMatch; }
        h.v.c = e == error.Strange ? 16w1 : 16w0;
        if (e != error.NoError) { h.v.c = h.v.c | 0x10; }
    }
}

SWITCH(Work)
