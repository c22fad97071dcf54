// The Portable Switch Architecture, version 1.2, as programs see it: its types, metadata and externs.
// Names and order are those of the published specification, widths those of bmv2's psa_switch.

#ifndef SWITCHAGG_PSA_P4
#define SWITCHAGG_PSA_P4

#include <core.p4>

// ---- numbers: within the data plane, and as they stand in headers that a controller reads

#define PSA_NUMBER(name, bits)                                             \
    typedef bit<bits> name##Uint_t;                                        \
    type name##Uint_t name##_t;                                            \
    typedef bit<bits> name##InHeaderUint_t;                                \
    type name##InHeaderUint_t name##InHeader_t;                            \
    name##_t psa_##name##_header_to_int(in name##InHeader_t x) {           \
        return (name##_t)(name##Uint_t)(name##InHeaderUint_t)x;            \
    }                                                                      \
    name##InHeader_t psa_##name##_int_to_header(in name##_t x) {           \
        return (name##InHeader_t)(name##InHeaderUint_t)(name##Uint_t)x;    \
    }

PSA_NUMBER(PortId, 32)
PSA_NUMBER(MulticastGroup, 32)
PSA_NUMBER(CloneSessionId, 16)
PSA_NUMBER(ClassOfService, 8)
PSA_NUMBER(PacketLength, 16)
PSA_NUMBER(EgressInstance, 16)
PSA_NUMBER(Timestamp, 64)
#undef PSA_NUMBER

typedef error ParserError_t;

const PortId_t PSA_PORT_RECIRCULATE = (PortId_t)0xfffffffa;
const PortId_t PSA_PORT_CPU = (PortId_t)0xfffffffd;
const CloneSessionId_t PSA_CLONE_SESSION_TO_CPU = (CloneSessionId_t)0;

match_kind {
    range,
    selector,
    optional
}

enum PSA_IdleTimeout_t { NO_TIMEOUT, NOTIFY_CONTROL }
enum PSA_PacketPath_t { NORMAL, NORMAL_UNICAST, NORMAL_MULTICAST, CLONE_I2E, CLONE_E2E, RESUBMIT, RECIRCULATE }
enum PSA_HashAlgorithm_t { IDENTITY, CRC32, CRC32_CUSTOM, CRC16, CRC16_CUSTOM, ONES_COMPLEMENT16, TARGET_DEFAULT }
enum PSA_CounterType_t { PACKETS, BYTES, PACKETS_AND_BYTES }
enum PSA_MeterType_t { PACKETS, BYTES }
enum PSA_MeterColor_t { RED, GREEN, YELLOW }

// ---- metadata

struct psa_ingress_parser_input_metadata_t {
    PortId_t ingress_port;
    PSA_PacketPath_t packet_path;
}

struct psa_egress_parser_input_metadata_t {
    PortId_t egress_port;
    PSA_PacketPath_t packet_path;
}

struct psa_ingress_input_metadata_t {
    PortId_t ingress_port;
    PSA_PacketPath_t packet_path;
    Timestamp_t ingress_timestamp;
    ParserError_t parser_error;
}

struct psa_ingress_output_metadata_t {
    ClassOfService_t class_of_service; // 0
    bool clone;                        // false
    CloneSessionId_t clone_session_id;
    bool drop;                         // true
    bool resubmit;                     // false
    MulticastGroup_t multicast_group;  // 0
    PortId_t egress_port;
}

struct psa_egress_input_metadata_t {
    ClassOfService_t class_of_service;
    PortId_t egress_port;
    PSA_PacketPath_t packet_path;
    EgressInstance_t instance;
    Timestamp_t egress_timestamp;
    ParserError_t parser_error;
}

struct psa_egress_deparser_input_metadata_t {
    PortId_t egress_port;
}

struct psa_egress_output_metadata_t {
    bool clone; // false
    CloneSessionId_t clone_session_id;
    bool drop;  // false
}

// ---- where packets go

bool psa_clone_i2e(in psa_ingress_output_metadata_t istd) { return istd.clone; }
bool psa_resubmit(in psa_ingress_output_metadata_t istd) { return !istd.drop && istd.resubmit; }
bool psa_normal(in psa_ingress_output_metadata_t istd) { return !istd.drop && !istd.resubmit; }
bool psa_clone_e2e(in psa_egress_output_metadata_t istd) { return istd.clone; }
bool psa_recirculate(in psa_egress_output_metadata_t istd, in psa_egress_deparser_input_metadata_t edstd) {
    return !istd.drop && edstd.egress_port == PSA_PORT_RECIRCULATE;
}

action send_to_port(inout psa_ingress_output_metadata_t meta, in PortId_t egress_port) {
    meta.drop = false;
    meta.multicast_group = (MulticastGroup_t)0;
    meta.egress_port = egress_port;
}

action multicast(inout psa_ingress_output_metadata_t meta, in MulticastGroup_t multicast_group) {
    meta.drop = false;
    meta.multicast_group = multicast_group;
}

action ingress_drop(inout psa_ingress_output_metadata_t meta) { meta.drop = true; }
action egress_drop(inout psa_egress_output_metadata_t meta) { meta.drop = true; }

// ---- externs

extern void assert(in bool check);
extern void assume(in bool check);

extern PacketReplicationEngine { PacketReplicationEngine(); }
extern BufferingQueueingEngine { BufferingQueueingEngine(); }

extern Hash<O> {
    Hash(PSA_HashAlgorithm_t algo);
    O get_hash<D>(in D data);
    O get_hash<T, D>(in T base, in D data, in T max);
}

extern Checksum<W> {
    Checksum(PSA_HashAlgorithm_t hash);
    void clear();
    void update<T>(in T data);
    W get();
}

extern InternetChecksum {
    InternetChecksum();
    void clear();
    void add<T>(in T data);
    void subtract<T>(in T data);
    bit<16> get();
    bit<16> get_state();
    void set_state(in bit<16> checksum_state);
}

extern Counter<W, S> {
    Counter(bit<32> n_counters, PSA_CounterType_t type);
    void count(in S index);
}

extern DirectCounter<W> {
    DirectCounter(PSA_CounterType_t type);
    void count();
}

extern Meter<S> {
    Meter(bit<32> n_meters, PSA_MeterType_t type);
    PSA_MeterColor_t execute(in S index, in PSA_MeterColor_t color);
    PSA_MeterColor_t execute(in S index);
}

extern DirectMeter {
    DirectMeter(PSA_MeterType_t type);
    PSA_MeterColor_t execute(in PSA_MeterColor_t color);
    PSA_MeterColor_t execute();
}

extern Register<T, S> {
    Register(bit<32> size);
    Register(bit<32> size, T initial_value);
    T read(in S index);
    void write(in S index, in T value);
}

extern Random<T> {
    Random(T min, T max);
    T read();
}

extern ActionProfile { ActionProfile(bit<32> size); }
extern ActionSelector { ActionSelector(PSA_HashAlgorithm_t algo, bit<32> size, bit<32> outputWidth); }

extern Digest<T> {
    Digest();
    void pack(in T data);
}

// ---- the blocks of a switch

parser IngressParser<H, M, RESUBM, RECIRCM>(
    packet_in buffer,
    out H parsed_hdr,
    inout M user_meta,
    in psa_ingress_parser_input_metadata_t istd,
    in RESUBM resubmit_meta,
    in RECIRCM recirculate_meta);

control Ingress<H, M>(
    inout H hdr,
    inout M user_meta,
    in psa_ingress_input_metadata_t istd,
    inout psa_ingress_output_metadata_t ostd);

control IngressDeparser<H, M, CI2EM, RESUBM, NM>(
    packet_out buffer,
    out CI2EM clone_i2e_meta,
    out RESUBM resubmit_meta,
    out NM normal_meta,
    inout H hdr,
    in M meta,
    in psa_ingress_output_metadata_t istd);

parser EgressParser<H, M, NM, CI2EM, CE2EM>(
    packet_in buffer,
    out H parsed_hdr,
    inout M user_meta,
    in psa_egress_parser_input_metadata_t istd,
    in NM normal_meta,
    in CI2EM clone_i2e_meta,
    in CE2EM clone_e2e_meta);

control Egress<H, M>(
    inout H hdr,
    inout M user_meta,
    in psa_egress_input_metadata_t istd,
    inout psa_egress_output_metadata_t ostd);

control EgressDeparser<H, M, CE2EM, RECIRCM>(
    packet_out buffer,
    out CE2EM clone_e2e_meta,
    out RECIRCM recirculate_meta,
    inout H hdr,
    in M meta,
    in psa_egress_output_metadata_t istd,
    in psa_egress_deparser_input_metadata_t edstd);

package IngressPipeline<IH, IM, NM, CI2EM, RESUBM, RECIRCM>(
    IngressParser<IH, IM, RESUBM, RECIRCM> ip,
    Ingress<IH, IM> ig,
    IngressDeparser<IH, IM, CI2EM, RESUBM, NM> id);

package EgressPipeline<EH, EM, NM, CI2EM, CE2EM, RECIRCM>(
    EgressParser<EH, EM, NM, CI2EM, CE2EM> ep,
    Egress<EH, EM> eg,
    EgressDeparser<EH, EM, CE2EM, RECIRCM> ed);

package PSA_Switch<IH, IM, EH, EM, NM, CI2EM, CE2EM, RESUBM, RECIRCM>(
    IngressPipeline<IH, IM, NM, CI2EM, RESUBM, RECIRCM> ingress,
    PacketReplicationEngine pre,
    EgressPipeline<EH, EM, NM, CI2EM, CE2EM, RECIRCM> egress,
    BufferingQueueingEngine bqe);

#endif
