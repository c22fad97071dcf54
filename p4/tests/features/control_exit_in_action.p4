// exit in an action called by a table ends ingress; egress still runs.
#include "include/values.p4"

CONTROL(Work) {
    action stop() {
        h.v.c = 3;
        exit;
    }

    table t {
        key = {
            h.v.a : exact;
        }
        actions = {
            stop;
            NoAction;
        }
        const entries = {
            1 : stop();
        }
        const default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        t.apply(); h.v.b = 1;
    }
}

CONTROL(After) {
    apply {
        h.v.d = 9;
    }
}

SWITCH_WITH_EGRESS(Work, After)
