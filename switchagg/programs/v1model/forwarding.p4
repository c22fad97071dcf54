// Everything that isn't for the aggregation: bridged by its Ethernet address, or routed if that is the switch's own.
// Nothing is learned: the control plane fills the tables, and `bridged`'s default says what happens to the rest.

control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }

    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }

    // To all ports of a group but the one it came from.
    action flood(bit<16> group) {
        standard.mcast_grp = group;
        meta.flooded = 1;
    }

    action to_next_hop(bit<9> port, bit<48> source, bit<48> target) {
        standard.egress_spec = port;
        hdr.ethernet.source = source;
        hdr.ethernet.target = target;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.rewritten = 1;
    }

    table routers {
        key = { hdr.ethernet.target: exact; }
        actions = { NoAction; }
        default_action = NoAction();
        size = 64;
    }

    table routed {
        key = { hdr.ipv4.target: lpm; }
        actions = { to_next_hop; drop; }
        default_action = drop();
        size = 1024;
    }

    table bridged {
        key = { hdr.ethernet.target: exact; }
        actions = { to_port; flood; drop; }
        default_action = drop();
        size = 4096;
    }

    apply {
        if (!hdr.ethernet.isValid()) {
            drop();
        } else if (!routers.apply().hit) {
            bridged.apply();
        } else if (hdr.ipv4.isValid() && hdr.ipv4.version == 4 && hdr.ipv4.words == 5 && hdr.ipv4.ttl > 1
                && standard.checksum_error == 0) {
            routed.apply();
        }
    }
}
