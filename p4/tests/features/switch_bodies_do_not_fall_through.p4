// After a case's block the switch is over.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        switch (h.v.a) {
            1: {
                h.v.b = h.v.b + 1;
            }
            2: {
                h.v.b = h.v.b + 16;
            }
        }
    }
}

SWITCH(Work)
