// S6, egress: a result goes from where the packet was sent to, to its sender (REPLY) or to each worker, by the copy's
// rank, with values or header-only; and congestion: ECN-capable results that meet a queue at or above a depth leave marked CE (RFC 3168).

#define RECEIVES(first, i) \
    (FROM_OWNER, first + i, first + i): strip(); \
    (TO_OWNER, first + i, first + i): NoAction();

control SwitchEgress(
        inout headers_t hdr,
        inout metadata_t meta,
        in egress_intrinsic_metadata_t intrinsic,
        in egress_intrinsic_metadata_from_parser_t from_parser,
        inout egress_intrinsic_metadata_for_deparser_t for_deparser,
        inout egress_intrinsic_metadata_for_output_port_t for_port) {
    action to_worker(bit<48> source_mac, bit<48> mac, bit<32> source, bit<32> address, bit<16> port) {
        hdr.ethernet.source = source_mac;
        hdr.ethernet.target = mac;
        hdr.ipv4.source = source;
        hdr.ipv4.target = address;
        hdr.udp.source = AGGREGATION_PORT;
        hdr.udp.target = port;
    }

    action nobody() {
        for_deparser.drop_ctl = 1;
    }

    // The copy's rank, or for a REPLY the packet's own.
    table workers {
        key = {
            hdr.chunk.job: exact;
            meta.receiver: exact;
        }
        actions = { to_worker; nobody; }
        default_action = nobody();
        size = 2048;
    }

    action strip() {
        hdr.low.setInvalid();
        hdr.high.setInvalid();
        hdr.chunk.elements = 0;
        hdr.udp.length = LENGTH_LEAST;
        hdr.ipv4.length = 20 + LENGTH_LEAST;
    }

    // Who gave values gets none.
    table strips {
        key = {
            hdr.chunk.route: ternary;
            hdr.chunk.owner: ternary;
            meta.receiver: ternary;
        }
        actions = { strip; NoAction; }
        const default_action = NoAction();
        const entries = {
            EACH(32, RECEIVES, 0)
            EACH(32, RECEIVES, 32)
            (TO_OWNER, _, _): strip();
        }
        size = 129;
    }

    action mark() {
        hdr.ipv4.ecn = 3;
    }

    table marking {
        key = {
            hdr.ipv4.ecn: exact;
            intrinsic.deq_qdepth: range;
        }
        actions = { mark; NoAction; }
        default_action = NoAction();
        size = 16;
    }

    apply {
        if (hdr.bridge.outcome == REPLY) {
            meta.receiver = (bit<16>)(hdr.chunk.rank & RANK);
        } else {
            meta.receiver = intrinsic.egress_rid;
        }
        workers.apply();
        strips.apply();
        marking.apply();
        hdr.ipv4.ttl = 64;
        hdr.udp.checksum = 0;
    }
}
