// What makes one member invalid makes the union invalid, also where another member was the valid one.
#include <core.p4>
#include <v1model.p4>

#include "include/union.p4"
#include "include/pipeline.p4"

bit<1> makes_valid(inout long_t l) {
    l.setValid();
    l.y = 0x0a0b;
    return 1;
}

void leaves(inout long_t l) {}

CONTROL(Work) {
    short_t no_s;
    long_t no_l;

    action revalidate() {
        h.u.l.setValid();
        h.u.l.y = 0x0c0d;
    }

    table picks {
        key = {
            h.u.s.isValid(): exact;
            h.u.l.isValid(): exact;
        }
        actions = { revalidate; NoAction; }
        const entries = { (false, false): revalidate(); }
        const default_action = NoAction();
    }

    apply {
        s.egress_spec = 1;
        h.k.flags = 0;
        switch (h.k.kind) {
            1: { h.u.l.setInvalid(); }
            2: { h.u.l = no_l; }
            3: { h.u.l = (long_t){#}; }
            4: { h.u.s = no_s; }
            5: { h.u.s.setInvalid(); }
            6: { leaves(h.u.l); }
            7: { h.k.flags = 4w0 ++ (bit<1>)h.u.s.isValid() ++ makes_valid(h.u.l) ++ (bit<1>)h.u.s.isValid() ++ 1w0; }
            8: { h.u.l.setInvalid(); picks.apply(); }
            9: { bit<1> i = (bit<1>)h.u.s.x; h.us[0].s = h.u.s; h.us[1].s = h.u.s; h.us[i].l.setInvalid(); }
            10: { h.u.l.y = 0x0102; }
            11: { h.u.s = h.u.s; h.u.l = h.u.l; }
        }
        h.k.flags = h.k.flags << 4 | FLAGS(h.u);
    }
}

SWITCH(Work)
