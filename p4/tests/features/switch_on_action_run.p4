// switch on the action that a table ran, with cases that share a block.
#include "include/values.p4"

CONTROL(Work) {
    action one() {}
    action two() {}
    action three() {}

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            one;
            two;
            three;
            NoAction;
        }
        const entries = {
            1 : one();
            2 : two();
            3 : three();
        }
        const default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        switch (t.apply().action_run) {
            one:
            two: {
                h.v.b = 0x12;
            }
            three: {
                h.v.b = 0x33;
            }
        }
        h.v.c = 1;
    }
}

SWITCH(Work)
