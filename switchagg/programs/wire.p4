// What is on the wire: Ethernet, ARP, IPv4, UDP, and our own header (P1 to P4).

header ethernet_t {
    bit<48> target;
    bit<48> source;
    bit<16> kind;
}

header arp_t {
    bit<16> hardware;
    bit<16> protocol;
    bit<8>  hardware_bytes;
    bit<8>  protocol_bytes;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender;
    bit<48> target_mac;
    bit<32> target;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  words;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> length;
    bit<16> identification;
    bit<1>  reserved;
    bit<1>  whole_only;
    bit<1>  more;
    bit<13> offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> target;
}

header udp_t {
    bit<16> source;
    bit<16> target;
    bit<16> length;
    bit<16> checksum;
}

// Who gives a chunk's values, and who gets its result.
const bit<2> ALL        = 0;
const bit<2> TO_OWNER   = 1; // all but the owner give
const bit<2> FROM_OWNER = 2; // the owner alone gives

// Of the byte `rank` (P7).
const bit<8> MARKED = 0x80;
const bit<8> RANK = 0x3f;

// The 20 bytes of P1.
header chunk_t {
    bit<16> magic;
    bit<4>  wire_version;
    bit<1>  op;
    bit<2>  route;
    bit<6>  owner;
    bit<1>  retransmission;
    bit<1>  version;
    bit<1>  result;
    bit<16> job;
    bit<16> slot;
    bit<32> generation;
    bit<8>  stream;
    bit<8>  rank; // in the lower six bits
    bit<16> elements;
    bit<32> chunk;
}
