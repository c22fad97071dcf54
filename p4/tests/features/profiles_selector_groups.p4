// An action selector takes the member at hash modulo size of the group; identity makes that plain.
#include "include/values.p4"

CONTROL(Work) {
    action set(bit<16> x) {
        h.v.c = x;
    }

    action_selector(HashAlgorithm.identity, 8, 8) choices;

    table t {
        key = {
            h.v.a : exact;
            h.v.b : selector;
        }
        actions = {
            set;
            NoAction;
        }
        implementation = choices;
    }

    apply {
        s.egress_spec = 1;
        t.apply();
    }
}

SWITCH(Work)
