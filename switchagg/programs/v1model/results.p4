// S6: a result goes from where the packet was sent to, to its sender (REPLY) or to each worker, by the copy's rank; a
// leaf's sums go to its parent (H3).

control Results(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Strip() strip;

    action to_worker(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.target = mac;
        hdr.ipv4.target = address;
        hdr.udp.target = port;
    }

    action nobody() {
        mark_to_drop(standard);
    }

    // egress_rid is the rank: the multicast group of a job has a copy for each.
    table workers {
        key = {
            hdr.chunk.job: exact;
            standard.egress_rid: exact;
        }
        actions = { to_worker; nobody; }
        default_action = nobody();
        size = 16384;
    }

    apply {
        bit<48> mac = hdr.ethernet.source;
        bit<32> address = hdr.ipv4.source;
        bit<16> port = hdr.udp.source;
        hdr.ethernet.source = hdr.ethernet.target;
        hdr.ipv4.source = hdr.ipv4.target;
        hdr.udp.source = hdr.udp.target;
        hdr.ipv4.ttl = 64;
        meta.rewritten = 1;
        meta.summed = 1;
        bit<8> receiver = (bit<8>)standard.egress_rid;
        if (meta.outcome == REPLY) {
            hdr.ethernet.target = mac;
            hdr.ipv4.target = address;
            hdr.udp.target = port;
            receiver = hdr.chunk.rank & RANK;
#ifdef LEAF
        } else if (meta.outcome != BROADCAST) {
            hdr.ethernet.target = meta.parent_mac;
            hdr.ipv4.target = meta.parent_address;
            hdr.udp.target = meta.parent_udp_port;
#endif
        } else {
            workers.apply();
        }
        bit<1> owns = receiver == (bit<8>)hdr.chunk.owner ? 1w1 : 1w0;
        if ((hdr.chunk.route == TO_OWNER && owns == 0) || (hdr.chunk.route == FROM_OWNER && owns == 1)) {
            strip.apply(hdr);
        }
    }
}
