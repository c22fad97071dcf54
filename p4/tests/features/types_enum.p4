// Members of an enum are equal only to themselves.
#include "include/values.p4"

enum colour_t { red, green, blue }

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        colour_t x = colour_t.green;
        if (h.v.a == 1) { x = colour_t.red; }
        if (h.v.a == 2) { x = colour_t.blue; }
        if (x == colour_t.red) { h.v.c = 0x11; }
        else if (x != colour_t.green) { h.v.c = 0x22; }
        else { h.v.c = 0x33; }
    }
}

SWITCH(Work)
