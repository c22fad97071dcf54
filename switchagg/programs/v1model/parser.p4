// Ethernet, ARP, IPv4 without options or fragments, UDP; to our port the header of P1, and values if there are E of them.
// A packet cut short ends here with what it has: layout.p4 counts it (P6), or it is forwarded as it came.

#define EXTRACT(block, lanes) packet.extract(hdr.values##block);
#define EMIT(block, lanes) packet.emit(hdr.values##block);

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.kind) {
            0x0800: ipv4;
            0x0806: arp;
            default: accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
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
        transition select(hdr.udp.target) {
            AGGREGATION_PORT: chunk;
            default: accept;
        }
    }

    state chunk {
        packet.extract(hdr.chunk);
        transition select(hdr.chunk.elements) {
            ELEMENTS: values;
            default: accept;
        }
    }

    state values {
        BLOCKS(EXTRACT)
        transition accept;
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.chunk);
        BLOCKS(EMIT)
    }
}
