// What most feature programs share: all but headers, metadata, the parser Read and the control that is tried.
control NoVerify(inout headers h, inout metadata m) {
    apply {}
}

control NoEgress(inout headers h, inout metadata m, inout standard_metadata_t s) {
    apply {}
}

control NoCompute(inout headers h, inout metadata m) {
    apply {}
}

control Write(packet_out b, in headers h) {
    apply {
        b.emit(h);
    }
}

#define CONTROL(name) control name(inout headers h, inout metadata m, inout standard_metadata_t s)
#define CHECKSUMS(name) control name(inout headers h, inout metadata m)
#define SWITCH(ingress) V1Switch(Read(), NoVerify(), ingress(), NoEgress(), NoCompute(), Write()) main;
#define SWITCH_WITH_EGRESS(ingress, egress) \
    V1Switch(Read(), NoVerify(), ingress(), egress(), NoCompute(), Write()) main;
#define SWITCH_WITH_CHECKSUMS(verify, ingress, compute) \
    V1Switch(Read(), verify(), ingress(), NoEgress(), compute(), Write()) main;
