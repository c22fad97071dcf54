// Annotations that the compiler has no use for change nothing, whatever they hold.
#include "include/values.p4"

@brand("any") @ours(1, two = 3) @structured[x = 1, y = "z"] @list[1, 2]
control Work(inout headers h, inout metadata m, inout standard_metadata_t s) {
    @hidden action set(@optional_note bit<8> x) {
        h.v.b = x;
    }

    apply @here {
        s.egress_spec = 1;
        @atomic {
            set(5);
        }
    }
}

SWITCH(Work)
