// H3 to H5: once all ranks are seen the sums go UP to the parent; its result goes to all (BROADCAST), and later to who
// asks (REPLY). Asks from before it go up again, once in a wave. Passes: as in verdict.p4. If only some of them have the
// result, what goes up is no rank's sum; but a parent that has given a result reads of such a packet only that it asks.

#define PASSES_PORT 510

control Verdict(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<64>>(2 * SLOTS) asked; // by these ranks, since the sums last went up; at most 63
    bit<1> goes = 0;

    @atomic
    action ask() {
        bit<32> index = meta.index - (PASSES - 1) * (2 * SLOTS);
        bit<64> before;
        asked.read(before, index);
        goes = (meta.counted == 1 || before == 0 || before & meta.rank != 0) ? 1w1 : 1w0;
        asked.write(index, meta.counted == 1 ? 64w0 : (goes == 1 ? 64w0 : before) | meta.rank);
    }

    apply {
        if (meta.pass == 0) {
            meta.has_result = 1;
        }
        if (meta.seen & meta.full != meta.full) {
            meta.complete = 0;
        }
        if (meta.seen & meta.parent == 0) {
            meta.has_result = 0;
        }
        if (meta.before & meta.rank == 0) {
            meta.counted = 1;
        }
        if (meta.pass != PASSES - 1) {
            standard.egress_spec = PASSES_PORT;
        } else if (meta.complete == 0) {
            meta.outcome = meta.counted == 1 ? ABSORBED : DROP_DUPLICATE;
        } else if (FROM_PARENT && meta.counted == 0) {
            meta.outcome = DROP_PARENT_DUPLICATE;
        } else if (FROM_PARENT) {
            meta.outcome = BROADCAST;
            hdr.chunk.retransmission = 0;
            standard.mcast_grp = meta.group;
        } else if (meta.has_result == 1) {
            meta.outcome = REPLY;
            hdr.chunk.result = 1;
            hdr.chunk.retransmission = 0;
            standard.egress_spec = meta.port;
        } else {
            ask();
            if (goes == 0) {
                meta.outcome = DROP_ASKED;
            } else {
                meta.outcome = meta.counted == 1 ? UP : UP_AGAIN;
                hdr.chunk.rank = meta.parent_rank | hdr.chunk.rank & MARKED;
                hdr.chunk.retransmission = 1w1 - meta.counted;
                standard.egress_spec = meta.parent_port;
            }
        }
    }
}
