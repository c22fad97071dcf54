// Everything that isn't for the aggregation is bridged; the control plane fills the table, its default says the rest.

control Forwarding(
        inout headers_t hdr,
        inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
        inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    action drop() {
        for_deparser.drop_ctl = 1;
    }

    action to_port(PortId_t port) {
        for_tm.ucast_egress_port = port;
        for_tm.bypass_egress = 1;
    }

    action flood(bit<16> group) {
        for_tm.mcast_grp_a = group;
        for_tm.bypass_egress = 1;
    }

    table bridged {
        key = { hdr.ethernet.target: exact; }
        actions = { to_port; flood; drop; }
        default_action = drop();
        size = 4096;
    }

    apply {
        bridged.apply();
    }
}
