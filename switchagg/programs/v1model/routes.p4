// Packets without values (P2). Inside the switch all packets have values: a header-only one gets zeros when it comes in, and the
// result of who gave values loses them when it leaves (S6).

#define ZERO(block, lane) hdr.values##block.v##lane = 0;
#define FILL(block, lanes) hdr.values##block.setValid(); EACH(lanes, ZERO, block)
#define STRIP(block, lanes) hdr.values##block.setInvalid();

control Fill(inout headers_t hdr, inout metadata_t meta) {
    apply {
        BLOCKS(FILL)
        hdr.chunk.elements = ELEMENTS;
        hdr.udp.length = hdr.udp.length + 4 * ELEMENTS;
        hdr.ipv4.length = hdr.ipv4.length + 4 * ELEMENTS;
        meta.rewritten = 1;
    }
}

control Strip(inout headers_t hdr) {
    apply {
        BLOCKS(STRIP)
        hdr.chunk.elements = 0;
        hdr.udp.length = hdr.udp.length - 4 * ELEMENTS;
        hdr.ipv4.length = hdr.ipv4.length - 4 * ELEMENTS;
    }
}
