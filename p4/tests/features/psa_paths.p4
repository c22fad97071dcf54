// Where packets go in PSA, and the metadata that goes with them: each path is told by what the packet says afterwards.
#include <core.p4>
#include <psa.p4>

header h_t {
    bit<8> wanted;      // what ingress is to do
    bit<8> ingress_way; // written by ingress: the packet's path, its port
    bit<8> ingress_port;
    bit<8> egress_way;  // written by egress: the packet's path, instance, class of service, and the metadata it came with
    bit<8> instance;
    bit<8> class;
    bit<16> carried;
}
struct headers_t { h_t h; }
struct meta_t { bit<16> carried; }

control number(in PSA_PacketPath_t path, out bit<8> way) {
    apply {
        way = 0;
        if (path == PSA_PacketPath_t.NORMAL) { way = 1; }
        if (path == PSA_PacketPath_t.NORMAL_UNICAST) { way = 2; }
        if (path == PSA_PacketPath_t.NORMAL_MULTICAST) { way = 3; }
        if (path == PSA_PacketPath_t.CLONE_I2E) { way = 4; }
        if (path == PSA_PacketPath_t.CLONE_E2E) { way = 5; }
        if (path == PSA_PacketPath_t.RESUBMIT) { way = 6; }
        if (path == PSA_PacketPath_t.RECIRCULATE) { way = 7; }
    }
}

parser InParser(packet_in p, out headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                in meta_t resubmitted, in meta_t recirculated) {
    state start {
        p.extract(h.h);
        m.carried = resubmitted.carried + recirculated.carried;
        transition accept;
    }
}
control In(inout headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
           inout psa_ingress_output_metadata_t o) {
    number() way;
    apply {
        bool again = i.packet_path == PSA_PacketPath_t.RESUBMIT || i.packet_path == PSA_PacketPath_t.RECIRCULATE;
        way.apply(i.packet_path, h.h.ingress_way);
        h.h.ingress_port = ((bit<32>)(PortIdUint_t)i.ingress_port)[7:0];
        o.class_of_service = (ClassOfService_t)3;
        if (h.h.wanted == 2) { multicast(o, (MulticastGroup_t)5); }
        else if (h.h.wanted == 3 && !again) { o.drop = false; o.resubmit = true; m.carried = 0x0333; }
        else if (h.h.wanted == 6 && !again) { send_to_port(o, PSA_PORT_RECIRCULATE); }
        else if (h.h.wanted != 0) { send_to_port(o, (PortId_t)1); }
        if (h.h.wanted == 4 || h.h.wanted == 8) { o.clone = true; o.clone_session_id = (CloneSessionId_t)8; }
        if (h.h.wanted == 8) { ingress_drop(o); }
    }
}
control InDeparser(packet_out p, out meta_t cloned, out meta_t resubmitted, out meta_t normal, inout headers_t h,
                   in meta_t m, in psa_ingress_output_metadata_t o) {
    apply {
        if (psa_clone_i2e(o)) { cloned.carried = 0x0444; }
        if (psa_resubmit(o)) { resubmitted.carried = m.carried; }
        if (psa_normal(o)) { normal.carried = m.carried | 0x1000; }
        p.emit(h);
    }
}
parser OutParser(packet_in p, out headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                 in meta_t normal, in meta_t cloned, in meta_t cloned_again) {
    state start {
        p.extract(h.h);
        m.carried = normal.carried + cloned.carried + cloned_again.carried;
        transition accept;
    }
}
control Out(inout headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
            inout psa_egress_output_metadata_t o) {
    number() way;
    apply {
        way.apply(i.packet_path, h.h.egress_way);
        h.h.instance = ((bit<16>)(EgressInstanceUint_t)i.instance)[7:0];
        h.h.class = (bit<8>)(ClassOfServiceUint_t)i.class_of_service;
        h.h.carried = m.carried;
        if (h.h.wanted == 5 && i.packet_path != PSA_PacketPath_t.CLONE_E2E) {
            o.clone = true;
            o.clone_session_id = (CloneSessionId_t)9;
        }
        if (h.h.wanted == 7) { egress_drop(o); }
    }
}
control OutDeparser(packet_out p, out meta_t cloned, out meta_t recirculated, inout headers_t h, in meta_t m,
                    in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply {
        if (psa_clone_e2e(o)) { cloned.carried = 0x0555; }
        if (psa_recirculate(o, d)) { recirculated.carried = 0x0666; }
        p.emit(h);
    }
}
IngressPipeline(InParser(), In(), InDeparser()) ingress;
EgressPipeline(OutParser(), Out(), OutDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
