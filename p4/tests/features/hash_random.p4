// A hash by random keeps between base and base + max, whatever the data.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        hash(h.v.c, HashAlgorithm.random, 16w5, {h.v.d}, 16w1); hash(h.v.a, HashAlgorithm.random, 8w10, {h.v.d}, 8w4); h.v.b = h.v.a >= 10 && h.v.a < 14 ? 8w1 : 8w0; h.v.a = 0;
    }
}

SWITCH(Work)
