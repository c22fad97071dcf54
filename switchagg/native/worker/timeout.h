/* The retransmission timeout of RFC 6298, in whole nanoseconds, as switchagg/pacing.py: the one arithmetic of the window
   and of reliable messages. */
#pragma once

#include <stdint.h>

struct sa_timeout {
    int64_t srtt_ns, rttvar_ns, rto_ns, rto_min_ns, rto_max_ns;
};

/* Take a measured round trip into account. Shifts of signed numbers round down, as Python's divisions do. */
static inline void sa_timeout_sample(struct sa_timeout *timeout, int64_t rtt_ns) {
    if (timeout->srtt_ns == 0) {
        timeout->srtt_ns = rtt_ns;
        timeout->rttvar_ns = rtt_ns >> 1;
    } else {
        int64_t off_ns = timeout->srtt_ns - rtt_ns;
        timeout->rttvar_ns = (3 * timeout->rttvar_ns + (off_ns < 0 ? -off_ns : off_ns)) >> 2;
        timeout->srtt_ns = (7 * timeout->srtt_ns + rtt_ns) >> 3;
    }
    int64_t rto_ns = timeout->srtt_ns + 4 * timeout->rttvar_ns;
    if (rto_ns < timeout->rto_min_ns) rto_ns = timeout->rto_min_ns;
    timeout->rto_ns = rto_ns < timeout->rto_max_ns ? rto_ns : timeout->rto_max_ns;
}
