// Congestion. Marks: a contribution that came marked CE carries that in its own header (G2); what it causes leaves as it
// would have come otherwise (G4). Ecn: ECN-capable packets that meet a queue at or above a depth leave marked CE (RFC 3168).

control Marks(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (hdr.ipv4.ecn == 3 && hdr.chunk.result == 0) {
            hdr.chunk.rank = hdr.chunk.rank | MARKED;
            hdr.ipv4.ecn = 2;
            meta.rewritten = 1;
        }
    }
}

control Ecn(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard) {
    action mark_at(bit<19> depth) {
        if (standard.enq_qdepth >= depth) {
            hdr.ipv4.ecn = 3;
            meta.rewritten = 1;
        }
    }

    table marking {
        key = { standard.egress_port: exact; }
        actions = { mark_at; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    apply {
        if (hdr.ipv4.isValid() && hdr.ipv4.version == 4 && hdr.ipv4.words == 5
                && (hdr.ipv4.ecn == 1 || hdr.ipv4.ecn == 2)) {
            marking.apply();
        }
    }
}
