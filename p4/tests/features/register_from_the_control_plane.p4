// register_write and register_reset of the command line.
#include "include/values.p4"

CONTROL(Work) {
    register<bit<16>>(4) r;

    apply {
        s.egress_spec = 1;
        bit<16> n; r.read(n, 2); h.v.c = n;
    }
}

SWITCH(Work)
