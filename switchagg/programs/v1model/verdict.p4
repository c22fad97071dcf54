// S5: BROADCAST if this packet made its chunk complete, REPLY if the chunk was complete, else DROP; and what of S6 is the
// same for all receivers. With several passes the chunk is complete if its values are in every pass, and the packet made
// it so if its rank was new in any: see README.md for why that holds whatever happens between two passes.

// Packets between two passes all wait in the queue of this one port, so they keep their order. Nothing is attached to it.
#define PASSES_PORT 510

control Verdict(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.seen != meta.full) {
            meta.complete = 0;
        }
        if (meta.before & meta.rank == 0) {
            meta.counted = 1;
        }
        if (meta.pass != PASSES - 1) {
            standard.egress_spec = PASSES_PORT;
        } else if (meta.complete == 0) {
            meta.outcome = meta.counted == 1 ? ABSORBED : DROP_DUPLICATE;
        } else {
            hdr.chunk.result = 1;
            hdr.chunk.retransmission = 0;
            if (meta.counted == 1) {
                meta.outcome = BROADCAST;
                standard.mcast_grp = meta.group;
            } else {
                meta.outcome = REPLY;
                standard.egress_spec = meta.port;
            }
        }
    }
}
