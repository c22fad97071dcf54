// IPv4's checksum, in and out; UDP's out (P5; in: layout.p4).

// All that UDP's checksum covers, but for the checksum itself: pseudo-header, header, packet; with or without values.
#define ITEM(block, lane) , hdr.values##block.v##lane
#define ITEMS(block, lanes) EACH(lanes, ITEM, block)
#define UDP_COVERS HEADER_COVERS BLOCKS(ITEMS)
#define HEADER_COVERS hdr.ipv4.source, hdr.ipv4.target, 8w0, hdr.ipv4.protocol, hdr.udp.length, \
    hdr.udp.source, hdr.udp.target, hdr.udp.length, \
    hdr.chunk.magic, hdr.chunk.wire_version, hdr.chunk.op, \
    hdr.chunk.route, hdr.chunk.owner, hdr.chunk.retransmission, hdr.chunk.version, hdr.chunk.result, \
    hdr.chunk.job, hdr.chunk.slot, hdr.chunk.generation, hdr.chunk.stream, hdr.chunk.rank, \
    hdr.chunk.elements, hdr.chunk.chunk

#define IPV4_COVERS hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length, \
    hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.whole_only, hdr.ipv4.more, hdr.ipv4.offset, \
    hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.target

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.words == 5, { IPV4_COVERS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ComputeChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten == 1, { IPV4_COVERS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
        // One that comes out as zero goes out as ones, which is the checksum of zero: a zero would say that there is none.
        update_checksum(meta.summed == 1 && hdr.values0.isValid(), { UDP_COVERS }, hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.summed == 1 && !hdr.values0.isValid(), { HEADER_COVERS }, hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.summed == 1 && hdr.udp.checksum == 0, { 16w0 }, hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
