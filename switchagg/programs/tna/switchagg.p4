// The switch of PROTOCOL.md for Tofino (TNA): 32 values a packet, 64 ranks, 8192 slots of two versions.
//
// Macros, all optional: SLOTS (a power of two up to 8192), AGGREGATION_PORT (UDP), PASSES_PORT (a recirculation port).

#include <core.p4>
#include <tna.p4>

#ifndef SLOTS
#define SLOTS 8192
#endif
#ifndef AGGREGATION_PORT
#define AGGREGATION_PORT 5556
#endif
#ifndef PASSES_PORT
#define PASSES_PORT 68
#endif

#define ELEMENTS 32
#define PAIRS 16

#include "../values.p4"
#include "../wire.p4"
#include "../outcomes.p4"
#include "metadata.p4"
#include "parser.p4"
#include "admission.p4"
#include "held.p4"
#include "seen.p4"
#include "marked.p4"
#include "verdict.p4"
#include "sums.p4"
#include "forwarding.p4"
#include "results.p4"

control SwitchIngress(
        inout headers_t hdr,
        inout metadata_t meta,
        in ingress_intrinsic_metadata_t intrinsic,
        in ingress_intrinsic_metadata_from_parser_t from_parser,
        inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
        inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Admission()  admission;
    Held()       held;
    Seen()       seen;
    Met()        met;
    Marked()     marked;
    Verdict()    verdict;
    Zeros()      zeros;
    Sums()       sums;
    Forwarding() forwarding;

    Counter<bit<32>, bit<8>>(32, CounterType_t.PACKETS) outcomes;

    apply {
        if (hdr.chunk.isValid() || meta.short == 1) {
            if (meta.mode == Mode.READ || !hdr.low.isValid()) {
                zeros.apply(hdr);
            }
            admission.apply(hdr, meta);
            if (meta.outcome == UNDECIDED) {
                held.apply(hdr, meta);
                seen.apply(meta);
                met.apply(hdr, meta);
                marked.apply(hdr, meta);
            }
            if (meta.outcome == UNDECIDED) {
                verdict.apply(hdr, meta, for_tm);
                sums.apply(hdr, meta);
            }
            if (meta.outcome != UNDECIDED) {
                outcomes.count(meta.outcome);
            }
            if (meta.sent == 0) {
                for_deparser.drop_ctl = 1;
            }
        } else {
            forwarding.apply(hdr, for_deparser, for_tm);
        }
    }
}

Pipeline(IngressParser(), SwitchIngress(), IngressDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;

Switch(pipe) main;
