// key, state, type, priority, entries, actions and apply are names where nothing else is meant.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        bit<8> key = h.v.a;
        bit<8> state = key + 1;
        bit<8> type = state + 1;
        bit<8> priority = type + 1;
        bit<8> entries = priority + 1;
        bit<8> actions = entries + 1;
        h.v.b = actions;
    }
}

SWITCH(Work)
