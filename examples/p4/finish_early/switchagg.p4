// The switch of PROTOCOL.md, but a sum is finished when n - 1 of the n workers are in: nobody waits for the last.
//
// sums.p4 and verdict.p4 beside this file are changed; all others are those of
// switchagg/programs/v1model: compile with -I switchagg/programs/v1model.
// Macros, all optional: ELEMENTS (E of the program's jobs, 1 to 256), SLOTS, AGGREGATION_PORT (UDP).

#include <core.p4>
#include <v1model.p4>

#ifndef SLOTS
#define SLOTS 1024
#endif
#ifndef AGGREGATION_PORT
#define AGGREGATION_PORT 5556
#endif

// Whether a chunk is finished with these ranks in: op SUM with at most one missing (clearing the lowest bit that is set
// leaves nothing), op MAX with none, for a scale that doesn't cover every worker's values would let them overflow; and
// with none if not all give values, for the only one who does may be the one that is missing.
#define MISSING(ranks) (meta.full & ~(ranks))
#define FINISHED(ranks) ((ranks) != 0 \
    && (hdr.chunk.op == 0 && hdr.chunk.route == ALL ? MISSING(ranks) & (MISSING(ranks) - 1) : MISSING(ranks)) == 0)

#include "../values.p4"
#include "../wire.p4"
#include "../outcomes.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksums.p4"
#include "counters.p4"
#include "layout.p4"
#include "admission.p4"
#include "routes.p4"
#include "held.p4"
#include "ecn.p4"
#include "seen.p4"
#include "sums.p4"
#include "verdict.p4"
#include "arp.p4"
#include "forwarding.p4"
#include "results.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Layout()     layout;
    Admission()  admission;
    Fill()       fill;
    Held()       held;
    Marks()      marks;
    Seen()       seen;
    Sums()       sums;
    Verdict()    verdict;
    Counters()   counters;
    Arp()        arp;
    Forwarding() forwarding;

    apply {
        mark_to_drop(standard); // unless somebody decides otherwise
        if (meta.pass == 0) {
            meta.port = standard.ingress_port;
            meta.complete = 1;
        }
        layout.apply(hdr, meta, standard);
        if (meta.outcome == UNDECIDED) {
            admission.apply(hdr, meta);
            if (meta.header_only == 1 && meta.pass == 0) {
                fill.apply(hdr, meta);
            }
        }
        if (meta.outcome == UNDECIDED) {
            held.apply(hdr, meta);
        }
        if (meta.outcome == UNDECIDED) {
            marks.apply(hdr, meta);
            seen.apply(hdr, meta);
            sums.apply(hdr, meta);
            verdict.apply(hdr, meta, standard);
        }
        if (meta.outcome == NOT_OURS) {
            arp.apply(hdr, meta, standard);
            if (meta.answered == 0) {
                forwarding.apply(hdr, meta, standard);
            }
        }
        counters.apply(meta);
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Results() results;
    Ecn()     ecn;

    apply {
        if (meta.outcome == UNDECIDED) {
            meta.pass = meta.pass + 1;
            recirculate_preserving_field_list(KEPT);
        } else {
            if (meta.outcome == BROADCAST || meta.outcome == REPLY) {
                results.apply(hdr, meta, standard);
            } else if (meta.flooded == 1 && standard.egress_port == meta.port) {
                mark_to_drop(standard); // never back to where it came from
            }
            ecn.apply(hdr, meta, standard);
        }
    }
}

V1Switch(SwitchParser(), VerifyChecksums(), SwitchIngress(), SwitchEgress(), ComputeChecksums(), SwitchDeparser()) main;
