// The switch answers ARP requests for its own addresses; all other ARP is forwarded.

control Arp(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action answer(bit<48> mac) {
        meta.answered = 1;
        hdr.ethernet.target = hdr.arp.sender_mac;
        hdr.ethernet.source = mac;
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.sender_mac = mac;
        bit<32> address = hdr.arp.target;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender = address;
        standard.egress_spec = standard.ingress_port;
    }

    table own {
        key = { hdr.arp.target: exact; }
        actions = { answer; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == 1 && hdr.arp.hardware == 1 && hdr.arp.protocol == 0x0800
                && hdr.arp.hardware_bytes == 6 && hdr.arp.protocol_bytes == 4) {
            own.apply();
        }
    }
}
