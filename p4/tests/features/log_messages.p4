// log_msg with and without values.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        log_msg("a packet"); log_msg("a = {}, c = {}", {h.v.a, h.v.c});
    }
}

SWITCH(Work)
