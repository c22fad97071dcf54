// Unions are assigned, copied within structs and stacks, compared and passed whole: one member at most is valid.
#include <core.p4>
#include <v1model.p4>

#include "include/union.p4"
#include "include/pipeline.p4"

either_t made(in bit<16> y) {
    either_t u;
    u.l.setValid();
    u.l.y = y;
    return u;
}

control Longer(in either_t from, out either_t to, inout either_t both) {
    apply {
        to.l.setValid();
        to.l.y = from.s.x ++ 8w1;
        both.l = to.l;
    }
}

CONTROL(Work) {
    Longer() longer;

    action swap(inout either_t a, inout either_t b) {
        either_t kept = a;
        a = b;
        b = kept;
    }

    apply {
        s.egress_spec = 1;
        either_t none;
        either_t other = made(0x0708);
        switch (h.k.kind) {
            1: { h.u = other; }
            2: { h.u = none; }
            3: { m.pair.u = h.u; m.pair.u.l = other.l; pair_t copy = m.pair; h.u = copy.u; }
            4: { h.us[1].l = other.l; h.us[0] = h.u; h.us[1] = h.us[0]; h.u = made(0x0910); }
            5: { h.us[0] = h.u; h.us.push_front(1); h.us[0].l = other.l; h.u.l.setInvalid(); }
            6: { swap(h.u, other); h.us[0] = other; }
            7: { longer.apply(h.u, h.us[0], other); h.us[1] = other; }
            8: { longer.apply(other, h.us[0], h.u); }
            9: { h.k.kind = 3w0 ++ (bit<1>)(h.u == other) ++ 3w0 ++ (bit<1>)(h.u == h.u); h.u = other;
                 h.k.kind[7:7] = (bit<1>)(h.u == other); h.k.kind[3:3] = (bit<1>)(none != other); }
            10: { h.us[0] = h.u; h.us[0].l = h.u.l; h.k.kind = FLAGS(h.us[0]); }
        }
        h.k.flags = FLAGS(h.u);
    }
}

SWITCH(Work)
