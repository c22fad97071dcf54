// Ethernet, IPv4 without options or fragments, UDP; to our port the header of P1, and values if it is a whole packet of
// 32; none if it is header-only (P2). Lengths are compared before anything is taken: what is cut short on the wire, the hardware's parser drops.

#define LENGTH_LEAST 28
#define LENGTH_WHOLE (28 + 4 * ELEMENTS)

parser IngressParser(
        packet_in packet,
        out headers_t hdr,
        out metadata_t meta,
        out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.work = 0;
        meta.sent = 0;
        meta.short = 0;
        meta.job = 0;
        meta.generation = 0;
        meta.stream = 0;
        meta.slot = 0;
        meta.rank = 0;
        meta.member = 0;
        meta.owner = 0;
        meta.elements = 0;
        transition select(intrinsic.ingress_port) {
            PASSES_PORT: again;
            default: first;
        }
    }

    state first {
        meta.port = intrinsic.ingress_port;
        meta.mode = Mode.COUNT;
        meta.finally = UNDECIDED;
        transition ethernet;
    }

    state again {
        packet.extract(hdr.again);
        meta.port = hdr.again.port;
        meta.mode = hdr.again.mode;
        meta.finally = hdr.again.outcome;
        transition ethernet;
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.kind) {
            0x0800: ipv4;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.more, hdr.ipv4.offset, hdr.ipv4.protocol) {
            (4, 5, 0, 0, 17): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.target, hdr.udp.length) {
            (AGGREGATION_PORT, 0 .. LENGTH_LEAST - 1): short;
            (AGGREGATION_PORT, _): chunk;
            default: accept;
        }
    }

    state short {
        meta.short = 1;
        transition accept;
    }

    state chunk {
        packet.extract(hdr.chunk);
        transition select(hdr.chunk.elements, hdr.udp.length) {
            (ELEMENTS, LENGTH_WHOLE): values;
            default: accept;
        }
    }

    state values {
        packet.extract(hdr.low);
        packet.extract(hdr.high);
        transition accept;
    }
}

control IngressDeparser(
        packet_out packet,
        inout headers_t hdr,
        in metadata_t meta,
        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}

parser EgressParser(
        packet_in packet,
        out headers_t hdr,
        out metadata_t meta,
        out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.chunk);
        transition select(hdr.chunk.route) {
            ALL: accept;
            default: values;
        }
    }

    state values {
        packet.extract(hdr.low);
        packet.extract(hdr.high);
        transition accept;
    }
}

control EgressDeparser(
        packet_out packet,
        inout headers_t hdr,
        in metadata_t meta,
        in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4;

    apply {
        hdr.ipv4.checksum = ipv4.update({
            hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length,
            hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.whole_only, hdr.ipv4.more, hdr.ipv4.offset,
            hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.target
        });
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.chunk);
        packet.emit(hdr.low);
        packet.emit(hdr.high);
    }
}
