// c ? x : y is x where c holds, else y; it may be nested in parentheses.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        h.v.c = h.v.a < 10 ? 16w1 : (h.v.a < 20 ? 16w2 : 16w3);
    }
}

SWITCH(Work)
