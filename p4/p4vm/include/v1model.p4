// The v1model architecture: parser, verify checksum, ingress, traffic manager, egress, compute checksum, deparser.
// Declarations as programs for simple_switch rely on them. Define V1MODEL_VERSION as 20200408 for the newer
// forms, where indices have a type of their own and ports the type PortId_t.

#ifndef SWITCHAGG_V1MODEL_P4
#define SWITCHAGG_V1MODEL_P4
#define _V1_MODEL_P4_

#include <core.p4>

#ifndef V1MODEL_VERSION
#define V1MODEL_VERSION 20180101
#endif

#if V1MODEL_VERSION < 20180101 || V1MODEL_VERSION > 20200408
#error "V1MODEL_VERSION is unknown; the first is 20180101, the latest 20200408"
#endif

#if V1MODEL_VERSION >= 20200408
#define V1MODEL_PORT PortId_t
#define V1MODEL_INDEXED <I>
#define V1MODEL_REGISTER <T, I>
#define V1MODEL_INDEX I
typedef bit<9> PortId_t;
#else
#define V1MODEL_PORT bit<9>
#define V1MODEL_INDEXED
#define V1MODEL_REGISTER <T>
#define V1MODEL_INDEX bit<32>
#endif

const bit<32> __v1model_version = V1MODEL_VERSION;

match_kind {
    range,     // low to high, both included
    optional,  // a value, or any
    selector   // no match: input of an action selector's hash
}

struct standard_metadata_t {
    V1MODEL_PORT ingress_port;
    V1MODEL_PORT egress_spec;        // where ingress sends the packet; 511 drops it
    V1MODEL_PORT egress_port;        // where it goes, as egress sees it
    bit<32> instance_type;           // 0 normal, 1 ingress clone, 2 egress clone, 4 recirculated, 5 copy, 6 resubmitted
    bit<32> packet_length;           // bytes
    bit<32> enq_timestamp;           // µs
    bit<19> enq_qdepth;              // packets
    bit<32> deq_timedelta;           // µs
    bit<19> deq_qdepth;              // packets
    bit<48> ingress_global_timestamp;  // µs since the switch started
    bit<48> egress_global_timestamp;
    bit<16> mcast_grp;               // 0: none
    bit<16> egress_rid;              // which replica of a multicast group
    bit<1> checksum_error;           // 1: verify_checksum found one
    error parser_error;
    bit<3> priority;                 // queue
}

enum CounterType {
    packets,
    bytes,
    packets_and_bytes
}

enum MeterType {
    packets,
    bytes
}

extern counter V1MODEL_INDEXED {
    counter(bit<32> size, CounterType type);
    void count(in V1MODEL_INDEX index);
}

extern direct_counter {
    direct_counter(CounterType type);
    void count();
}

#define V1MODEL_METER_COLOR_GREEN 0
#define V1MODEL_METER_COLOR_YELLOW 1
#define V1MODEL_METER_COLOR_RED 2

extern meter V1MODEL_INDEXED {
    meter(bit<32> size, MeterType type);
    void execute_meter<T>(in V1MODEL_INDEX index, out T result);
}

extern direct_meter<T> {
    direct_meter(MeterType type);
    void read(out T result);
}

extern register V1MODEL_REGISTER {
    register(bit<32> size);
    void read(out T result, in V1MODEL_INDEX index);
    void write(in V1MODEL_INDEX index, in T value);
}

extern action_profile {
    action_profile(bit<32> size);
}

// Any number from lo to hi, both included.
extern void random<T>(out T result, in T lo, in T hi);

// A message to the control plane.
extern void digest<T>(in bit<32> receiver, in T data);

enum HashAlgorithm {
    crc32,
    crc32_custom,
    crc16,
    crc16_custom,
    random,
    identity,
    csum16,
    xor16
}

extern void mark_to_drop();
extern void mark_to_drop(inout standard_metadata_t standard_metadata);

// base + hash of data modulo max.
extern void hash<O, T, D, M>(out O result, in HashAlgorithm algo, in T base, in D data, in M max);

extern action_selector {
    action_selector(HashAlgorithm algorithm, bit<32> size, bit<32> outputWidth);
}

enum CloneType {
    I2E,
    E2E
}

extern Checksum16 {
    Checksum16();
    bit<16> get<D>(in D data);
}

// In VerifyChecksum. A wrong checksum sets checksum_error.
extern void verify_checksum<T, O>(in bool condition, in T data, in O checksum, HashAlgorithm algo);
extern void verify_checksum_with_payload<T, O>(in bool condition, in T data, in O checksum, HashAlgorithm algo);

// In ComputeChecksum.
extern void update_checksum<T, O>(in bool condition, in T data, inout O checksum, HashAlgorithm algo);
extern void update_checksum_with_payload<T, O>(in bool condition, in T data, inout O checksum, HashAlgorithm algo);

// These take effect when ingress or egress is over. index: of the fields annotated with @field_list, which the copy
// keeps. The forms with data are those of older programs.
extern void clone(in CloneType type, in bit<32> session);
extern void clone_preserving_field_list(in CloneType type, in bit<32> session, bit<8> index);
extern void clone3<T>(in CloneType type, in bit<32> session, in T data);
extern void resubmit_preserving_field_list(bit<8> index);
extern void resubmit<T>(in T data);
extern void recirculate_preserving_field_list(bit<8> index);
extern void recirculate<T>(in T data);

// Bytes that are sent of this packet at most.
extern void truncate(in bit<32> length);

extern void assert(in bool check);
extern void assume(in bool check);

// {} in msg stands for the next value of data.
extern void log_msg(string msg);
extern void log_msg<T>(string msg, in T data);

parser Parser<H, M>(packet_in b, out H parsedHdr, inout M meta, inout standard_metadata_t standard_metadata);
control VerifyChecksum<H, M>(inout H hdr, inout M meta);
control Ingress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);
control Egress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);
control ComputeChecksum<H, M>(inout H hdr, inout M meta);
control Deparser<H>(packet_out b, in H hdr);

package V1Switch<H, M>(
    Parser<H, M> p,
    VerifyChecksum<H, M> vr,
    Ingress<H, M> ig,
    Egress<H, M> eg,
    ComputeChecksum<H, M> ck,
    Deparser<H> dep);

#undef V1MODEL_PORT
#undef V1MODEL_INDEXED
#undef V1MODEL_REGISTER
#undef V1MODEL_INDEX

#endif
