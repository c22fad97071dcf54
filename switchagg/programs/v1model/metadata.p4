// What a packet carries with it through the switch.

#define KEPT 1

#define FIELD(block, lane) bit<32> v##lane;
#define HEADER(block, lanes) header values##block##_t { EACH(lanes, FIELD, block) }
BLOCKS(HEADER)

#ifdef LEAF
#define IS_LEAF true
#define FROM_PARENT (meta.from_parent == 1)
#else
#define IS_LEAF false
#define FROM_PARENT false
#endif

#define PART(block, lanes) values##block##_t values##block;
struct headers_t {
    ethernet_t ethernet;
    arp_t      arp;
    ipv4_t     ipv4;
    udp_t      udp;
    chunk_t    chunk;
    BLOCKS(PART)
}

struct metadata_t {
    // Kept from one pass of a packet to the next.
    @field_list(KEPT) bit<8> pass;
    @field_list(KEPT) bit<9> port;     // where it came in
    @field_list(KEPT) bit<1> complete; // all ranks have been seen, in every pass so far
    @field_list(KEPT) bit<1> counted;  // its rank was new, in any pass so far

#ifdef LEAF
    @field_list(KEPT) bit<1> has_result; // the parent's result is there, in every pass so far
#endif

    bit<8>  outcome;    // counters.p4; UNDECIDED: a further control, or pass, decides
    bit<1>  answered;   // ARP
    bit<1>  flooded;
    bit<1>  rewritten;  // the IPv4 header has changed
    bit<1>  summed;     // a result, which gets a UDP checksum

    // What the tables say of the packet's job, stream and rank (admission.p4).
    bit<32> generation;
    bit<8>  workers;
    bit<16> elements;
    bit<64> full;       // the bitmap of all ranks
    bit<16> group;      // the multicast group of all workers
    bit<16> first_slot;
    bit<16> last_offset; // of the stream's range
    bit<64> rank;       // the bitmap of this one
    bit<1>  header_only;       // its rank gives no values
    bit<64> mask;       // of those seen before, the ranks whose values the sums are; if its rank gives none, all

#ifdef LEAF
    bit<1>  from_parent; // its result
    bit<64> parent;      // the bit after those of all ranks (H1)
    bit<8>  parent_rank; // of this switch there
    bit<9>  parent_port;
    bit<48> parent_mac;
    bit<32> parent_address;
    bit<16> parent_udp_port;
#endif

    // What the registers said.
    bit<32> index;      // of the slot version, in this pass
    bit<1>  fresh;
    bit<64> before;
    bit<64> seen;
}
