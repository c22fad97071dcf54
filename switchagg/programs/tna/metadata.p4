// What a packet carries with it: in the pipeline, from ingress to egress, and from one pass to the next.

#define FIELD(block, lane) int<32> v##lane;
header values_t {
    EACH(PAIRS, FIELD, 0)
}

// COUNT: the packet contributes. READ, HARVEST: it fetches the lower, the upper half of a finished chunk's sums.
enum bit<8> Mode {
    COUNT = 0,
    READ = 1,
    HARVEST = 2
}

// In front of a packet that comes round again.
header again_t {
    bit<7>    padding;
    PortId_t  port;    // where it came in
    Mode      mode;
    bit<8>    outcome; // what it becomes after the last pass
}

// In front of a packet that goes through egress.
header bridge_t {
    bit<8> outcome;
}

struct headers_t {
    again_t    again;
    bridge_t   bridge;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
    chunk_t    chunk;
    values_t   low;
    values_t   high;
}

typedef bit<14> index_t;

struct metadata_t {
    PortId_t port;
    Mode     mode;
    bit<8>   outcome;
    bit<8>   finally;  // the outcome once all passes are made
    bit<8>   work;     // for the sums
    bit<1>   sent;
    bit<1>   short;    // no room for a header

    // Admission: what is known of the packet's job, stream and rank.
    bit<1>   job;
    bit<1>   generation;
    bit<1>   stream;
    bit<1>   slot;
    bit<1>   rank;
    bit<1>   member;
    bit<1>   owner;
    bit<1>   gives;    // values, as its route says
    bit<1>   elements;
    bit<16>  size;     // of the values
    bit<16>  others;   // UDP's length without them
    bit<16>  group;
    bit<32>  rank_low; // the bitmap of this rank
    bit<32>  rank_high;
    bit<32>  others_low; // the bitmap of all others
    bit<32>  others_high;
    bit<32>  mask_low; // of those seen before, the ranks whose values the sums are; if it gives none, all
    bit<32>  mask_high;
    index_t  index;

    bit<16>  receiver; // egress: a rank

    // Registers.
    bit<32>  previous; // the chunk two windows before this packet's
    bit<32>  held;
    bit<32>  ahead;    // 0: its chunk is held
    bit<32>  beyond;   // 0: the previous one was, and gives way
    bit<8>   marked;   // or 0
    bit<32>  before_low;
    bit<32>  before_high;
    bit<32>  counted_low;
    bit<32>  counted_high;
    bit<32>  repeated_low;
    bit<32>  repeated_high;
    bit<32>  missing_low;
    bit<32>  missing_high;
}
