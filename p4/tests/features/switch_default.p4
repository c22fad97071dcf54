// default takes what no case names.
#include "include/values.p4"

CONTROL(Work) {
    action one() {}
    action two() {}

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            one;
            two;
        }
        const entries = {
            1 : one();
        }
        const default_action = two();
    }

    apply {
        s.egress_spec = 1;
        switch (t.apply().action_run) {
            one: {
                h.v.b = 1;
            }
            default: {
                h.v.b = 9;
            }
        }
    }
}

SWITCH(Work)
