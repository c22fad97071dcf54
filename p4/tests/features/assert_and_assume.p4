// assert and assume of what is true do nothing.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        assert(h.v.a != 0xff); assume(h.v.b <= 0xff); h.v.c = 1;
    }
}

SWITCH(Work)
