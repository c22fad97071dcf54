// switch on an enum's members.
#include "include/values.p4"

enum size_t { small, medium, large }

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        size_t x = h.v.a < 10 ? size_t.small : (h.v.a < 100 ? size_t.medium : size_t.large);
        switch (x) {
            size_t.small: {
                h.v.b = 1;
            }
            size_t.large: {
                h.v.b = 3;
            }
            default: {
                h.v.b = 2;
            }
        }
    }
}

SWITCH(Work)
