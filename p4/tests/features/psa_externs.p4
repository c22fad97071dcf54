// PSA's externs: registers that start at a value, counters, meters, hashes, checksums, random numbers, selectors.
#include <core.p4>
#include <psa.p4>

header h_t {
    bit<8> index;
    bit<8> color;
    bit<16> cell;
    bit<16> hash;
    bit<16> within;
    bit<16> sum;
    bit<16> less;
    bit<8> drawn;
    bit<8> member;
}
struct headers_t { h_t h; }
struct meta_t { }
struct nothing_t { }

parser InParser(packet_in p, out headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                in nothing_t resubmitted, in nothing_t recirculated) {
    state start { p.extract(h.h); transition accept; }
}
control In(inout headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
           inout psa_ingress_output_metadata_t o) {
    Register<bit<16>, bit<8>>(4, 0x0100) cells;
    Counter<bit<64>, bit<8>>(4, PSA_CounterType_t.PACKETS_AND_BYTES) seen;
    DirectCounter<bit<32>>(PSA_CounterType_t.PACKETS) hits;
    Meter<bit<8>>(4, PSA_MeterType_t.PACKETS) rate;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16) crc;
    Random<bit<8>>(7, 7) dice;
    ActionProfile(8) profile;
    InternetChecksum() sum;
    action member(bit<8> number) { h.h.member = number; hits.count(); }
    table members {
        key = { h.h.index : exact; }
        actions = { member; NoAction; }
        psa_implementation = profile;
    }
    table counted {
        key = { h.h.index : exact; }
        actions = { member; NoAction; }
        const entries = { 1 : member(9); }
        psa_direct_counter = hits;
    }
    apply {
        bit<16> cell = cells.read(h.h.index);
        cells.write(h.h.index, cell + 1);
        h.h.cell = cell;
        seen.count(h.h.index);
        PSA_MeterColor_t color = rate.execute(h.h.index);
        h.h.color = 3;
        if (color == PSA_MeterColor_t.GREEN) { h.h.color = 1; }
        if (color == PSA_MeterColor_t.YELLOW) { h.h.color = 2; }
        h.h.hash = crc.get_hash({ 4w0x3, 16w0x1323 });
        h.h.within = crc.get_hash(16w100, { 8w0x31 }, 16w10);
        sum.add({ 16w0xfffe, 16w0x0003 });
        h.h.sum = sum.get();
        sum.subtract({ 16w0x0003 });
        h.h.less = sum.get_state();
        h.h.drawn = dice.read();
        counted.apply();
        members.apply();
        send_to_port(o, (PortId_t)1);
    }
}
control InDeparser(packet_out p, out nothing_t cloned, out nothing_t resubmitted, out nothing_t normal,
                   inout headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    apply { p.emit(h); }
}
parser OutParser(packet_in p, out headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                 in nothing_t normal, in nothing_t cloned, in nothing_t cloned_again) {
    state start { transition accept; }
}
control Out(inout headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
            inout psa_egress_output_metadata_t o) {
    apply { }
}
control OutDeparser(packet_out p, out nothing_t cloned, out nothing_t recirculated, inout headers_t h, in meta_t m,
                    in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply { p.emit(h); }
}
IngressPipeline(InParser(), In(), InDeparser()) ingress;
EgressPipeline(OutParser(), Out(), OutDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
