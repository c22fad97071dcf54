// #define with arguments, # and ##, conditions, and a file included.
#define METADATA bit<8> x;
#include "include/values.p4"

#define FIELD(name) h.v.name
#define ADD(name, n) FIELD(name) = FIELD(name) + 8w##n
#if defined(METADATA) && 2 * 3 == 6
#define STEP 2
#else
#error this is never reached
#endif

CONTROL(Work) {
    apply {
        s.egress_spec = 1;
        ADD(a, 5);
        ADD(b, 0x10);
        FIELD(c) = STEP;
#ifdef NOWHERE
        FIELD(d) = 1;
#elif STEP == 2
        FIELD(d) = 2;
#endif
    }
}

SWITCH(Work)
