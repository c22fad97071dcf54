// S1: only what an admitted job's worker sent from its own address is aggregated. The control plane fills the tables when
// it admits a job and empties them when it evicts one (S7, S8). Every pass asks again: a job may end between two of them.

control Admission(inout headers_t hdr, inout metadata_t meta) {
    bit<8> rank = 0; // also with CLOSE, which makes it one that no job has

    action set_job(bit<32> generation, bit<8> workers, bit<64> full, bit<16> elements, bit<16> group) {
        meta.generation = generation;
        meta.workers = workers;
        meta.full = full;
        meta.elements = elements;
        meta.group = group;
    }

    action set_range(bit<16> first_slot, bit<16> last_offset) {
        meta.first_slot = first_slot;
        meta.last_offset = last_offset;
    }

    action set_rank(bit<64> bitmap) {
        meta.rank = bitmap;
    }

#ifdef LEAF
    action set_parent(bit<64> bitmap, bit<8> rank, bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port) {
        meta.parent = bitmap;
        meta.parent_rank = rank;
        meta.parent_port = port;
        meta.parent_mac = mac;
        meta.parent_address = address;
        meta.parent_udp_port = udp_port;
    }

    // Where the sums go, and results come from (H1).
    table parents {
        key = { hdr.chunk.job: exact; }
        actions = { set_parent; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
#endif

    table jobs {
        key = { hdr.chunk.job: exact; }
        actions = { set_job; NoAction; }
        default_action = NoAction();
        size = 1024;
    }

    table streams {
        key = {
            hdr.chunk.job: exact;
            hdr.chunk.stream: exact;
        }
        actions = { set_range; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    // A rank's packets come from one port, address and UDP port.
    table members {
        key = {
            hdr.chunk.job: exact;
            rank: exact;
            meta.port: exact;
            hdr.ipv4.source: exact;
            hdr.udp.source: exact;
        }
        actions = { set_rank; NoAction; }
        default_action = NoAction();
        size = 16384;
    }

    apply {
#ifdef LEAF
        if (parents.apply().hit && hdr.chunk.result == 1 && meta.port == meta.parent_port
                && hdr.ipv4.source == meta.parent_address && hdr.udp.source == meta.parent_udp_port) {
            meta.from_parent = 1;
        }
#endif
        rank = hdr.chunk.rank & ~MARKED;
        if (hdr.chunk.result == 1 && !FROM_PARENT) {
            meta.outcome = DROP_RESULT;
        } else if (!jobs.apply().hit) {
            meta.outcome = DROP_JOB;
        } else if (hdr.chunk.generation != meta.generation) {
            meta.outcome = DROP_GENERATION;
        } else if (!streams.apply().hit) {
            meta.outcome = DROP_STREAM;
        } else if (hdr.chunk.slot - meta.first_slot > meta.last_offset) { // modulo 2^16: also what lies before
            meta.outcome = DROP_SLOT;
#ifdef LEAF
        } else if (FROM_PARENT) { // one rank more, whose values replace the sums
            meta.rank = meta.parent;
            meta.mask = meta.parent;
            if (hdr.chunk.route != ALL) {
                meta.outcome = DROP_ROUTE;
            }
#endif
        } else if (rank >= meta.workers) {
            meta.outcome = DROP_RANK;
        } else if (!members.apply().hit) {
            meta.outcome = DROP_PORT;
        } else if (IS_LEAF && hdr.chunk.route != ALL) {
            meta.outcome = DROP_ROUTE; // H2
        } else if (hdr.chunk.route != ALL && (meta.workers < 2 || (bit<8>)hdr.chunk.owner >= meta.workers)) {
            meta.outcome = DROP_OWNER;
        }
        if (meta.outcome == UNDECIDED) {
            if (!FROM_PARENT) {
                meta.mask = meta.full;
            }
            if (hdr.chunk.route != ALL) {
                bit<64> owner = 64w1 << hdr.chunk.owner;
                bit<64> givers = hdr.chunk.route == FROM_OWNER ? owner : meta.full & ~owner;
                if (givers & meta.rank == 0) {
                    meta.header_only = 1;
                } else {
                    meta.mask = givers;
                }
            }
            if (meta.header_only == 1 && meta.pass == 0) { // routes.p4: it has values in later passes
                if (hdr.chunk.elements != 0) {
                    meta.outcome = DROP_ELEMENTS;
                }
            } else if (hdr.chunk.elements != meta.elements || !hdr.values0.isValid()) {
                meta.outcome = DROP_ELEMENTS;
            }
            meta.index = (bit<32>)meta.pass * (2 * SLOTS) + ((bit<32>)hdr.chunk.slot << 1) + (bit<32>)hdr.chunk.version;
        }
    }
}
