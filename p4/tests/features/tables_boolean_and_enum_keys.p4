// Keys of type bool and of a serializable enum.
#include "include/values.p4"

enum bit<8> kind_t {
    one = 1,
    two = 2
}

CONTROL(Work) {
    bool flag;
    kind_t kind;

    action set(bit<16> x) {
        h.v.c = x;
    }

    table t {
        key = {
            flag : exact;
            kind : exact;
        }
        actions = {
            set;
            NoAction;
        }
        default_action = set(0xdd);
        const entries = {
            (true, kind_t.one) : set(1);
            (false, kind_t.two) : set(2);
        }
    }

    apply {
        s.egress_spec = 1;
        flag = h.v.b == 5;
        kind = (kind_t) h.v.a;
        t.apply();
    }
}

SWITCH(Work)
