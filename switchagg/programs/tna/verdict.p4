// S5, and what S4 is to do: one table, a line for each case.
//
// A stateful ALU changes both sums of a pair and gives back one. So a packet that completes its chunk comes with the
// lower half of the sums and fetches the upper half in a second pass (HARVEST); a repeated one fetches both (READ, which
// adds zeros, then HARVEST). These passes change nothing, and held tells them if the chunk is gone meanwhile.

// What a packet makes at most when nothing is lost or repeated: `switchagg p4 fit` reckons with it.
@noWarn("unused")
const bit<8> RECIRCULATIONS = 1;

const bit<8> WRITE = 1;
const bit<8> SUM = 2;
const bit<8> MAX = 3;
const bit<8> FETCH = 4;

control Verdict(inout headers_t hdr, inout metadata_t meta, inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    action absorb(bit<8> work) {
        meta.work = work;
        meta.outcome = ABSORBED;
    }

    action ignore() {
        meta.outcome = DROP_DUPLICATE;
    }

    action pass(bit<8> work, Mode mode, bit<8> outcome) {
        meta.work = work;
        meta.sent = 1;
        hdr.again.setValid();
        hdr.again.padding = 0;
        hdr.again.port = meta.port;
        hdr.again.mode = mode;
        hdr.again.outcome = outcome;
        hdr.chunk.elements = ELEMENTS; // also if it came without values
        hdr.udp.length = LENGTH_WHOLE;
        hdr.ipv4.length = 20 + LENGTH_WHOLE;
        for_tm.ucast_egress_port = PASSES_PORT;
        for_tm.bypass_egress = 1;
    }

    action finish(bit<8> work) {
        meta.work = work;
        meta.outcome = meta.finally;
        meta.sent = 1;
        hdr.again.setInvalid();
        hdr.bridge.setValid();
        hdr.bridge.outcome = meta.finally;
        hdr.chunk.result = 1;
        hdr.chunk.retransmission = 0;
    }

    // Nobody else gives values, as in a job of one worker: its values are the sums.
    action finish_alone() {
        meta.work = WRITE;
        meta.outcome = BROADCAST;
        meta.sent = 1;
        hdr.bridge.setValid();
        hdr.bridge.outcome = BROADCAST;
        hdr.chunk.result = 1;
        hdr.chunk.retransmission = 0;
    }

    table verdicts {
        key = {
            meta.mode: ternary;
            meta.counted_low: ternary;
            meta.counted_high: ternary;
            meta.repeated_low: ternary;
            meta.repeated_high: ternary;
            meta.missing_low: ternary;
            meta.missing_high: ternary;
            hdr.chunk.op: ternary;
            meta.gives: ternary;
        }
        actions = { absorb; ignore; pass; finish; finish_alone; }
        const default_action = ignore();
        const entries = {
            (Mode.HARVEST, _, _, _, _, _, _, _, _): finish(FETCH);
            (Mode.READ, _, _, _, _, _, _, _, _): pass(SUM, Mode.HARVEST, REPLY);
            // nobody before whose values count; zeros, if the rank gives none
            (_, 0, 0, _, _, 0, 0, _, _): finish_alone();
            (_, 0, 0, _, _, _, _, _, _): absorb(WRITE);
            // a rank's first, and the last that was missing; if it gives none, zeros are added
            (_, _, _, 0, 0, 0, 0, 1, 1): pass(MAX, Mode.HARVEST, BROADCAST);
            (_, _, _, 0, 0, 0, 0, _, _): pass(SUM, Mode.HARVEST, BROADCAST);
            // a rank's first
            (_, _, _, 0, 0, _, _, 1, 1): absorb(MAX);
            (_, _, _, 0, 0, _, _, _, _): absorb(SUM);
            // a rank's second, and none is missing
            (_, _, _, _, _, 0, 0, _, _): pass(0, Mode.READ, REPLY);
        }
        size = 16;
    }

    apply {
        verdicts.apply();
        if (meta.outcome == BROADCAST) {
            for_tm.mcast_grp_a = meta.group;
            for_tm.level1_exclusion_id = 0xffff;
        } else if (meta.outcome == REPLY) {
            for_tm.ucast_egress_port = meta.port;
        }
    }
}
