// A packet may leave by the port it came from.
#include "include/values.p4"

CONTROL(Work) {
    apply {
        s.egress_spec = s.ingress_port;
    }
}

SWITCH(Work)
