// Is it for the switch, and is it a packet? P5 and P6: what breaks the layout is dropped under the first reason.

control Layout(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard) {
    bit<16> payload = 0;
    bit<16> sum = 0;

    // The addresses at which the switch takes datagrams.
    table addresses {
        key = { hdr.ipv4.target: exact; }
        actions = { NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        meta.outcome = UNDECIDED;
        if (!hdr.udp.isValid() || hdr.udp.target != AGGREGATION_PORT) {
            meta.outcome = NOT_OURS;
        } else if (!addresses.apply().hit) {
            meta.outcome = NOT_OURS;
        } else if (hdr.udp.length < 8 || hdr.ipv4.length < 28 || hdr.udp.length > hdr.ipv4.length - 20
                || (bit<32>)hdr.ipv4.length + 14 > standard.packet_length) {
            meta.outcome = DROP_TRUNCATED;
        } else {
            payload = hdr.udp.length - 8;
            if (payload < 20) {
                meta.outcome = DROP_SHORT;
            } else if (hdr.chunk.magic != 0x5341) {
                meta.outcome = DROP_MAGIC;
            } else if (hdr.chunk.wire_version != 2) {
                meta.outcome = DROP_WIRE_VERSION;
            } else if (hdr.chunk.route > FROM_OWNER) {
                meta.outcome = DROP_OP;
            } else if (hdr.chunk.route == ALL && hdr.chunk.owner != 0) {
                meta.outcome = DROP_FLAGS;
            } else if ((hdr.chunk.elements == 0 && hdr.chunk.route == ALL) || hdr.chunk.elements > 16000
                    || payload != (hdr.chunk.elements << 2) + 20) {
                meta.outcome = DROP_LENGTH;
            } else if (standard.checksum_error == 1) {
                meta.outcome = DROP_CHECKSUM;
            } else if (hdr.udp.checksum != 0 && meta.pass == 0) {
                // With the checksum among what is summed, a right one makes zero, whichever zero it is. Later passes
                // bring sums instead of values; a packet whose E isn't the program's can't get past S1.
                if (hdr.values0.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 16w0, { UDP_COVERS, hdr.udp.checksum }, 32w0x10000);
                } else if (hdr.chunk.elements == 0) {
                    hash(sum, HashAlgorithm.csum16, 16w0, { HEADER_COVERS, hdr.udp.checksum }, 32w0x10000);
                }
                if (sum != 0) {
                    meta.outcome = DROP_CHECKSUM;
                }
            }
        }
    }
}
