"""A program with one of everything a control plane may set, for the tests of control plane, commands and runners."""

from functools import lru_cache

from p4vm.check.check_program import check
from p4vm.control.controlled_switch import ControlledSwitch
from p4vm.front.parse_program import parse_text
from p4vm.ir import ir_nodes as ir
from p4vm.lower.lower_program import lower
from p4vm.python.python_engine import PythonEngine

TEXT = """
#include <core.p4>
#include <v1model.p4>

enum Color { red, green, blue }
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t { bit<32> src; bit<32> dst; int<8> level; bit<8> kind; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }
struct meta_t { bit<8> tag; bit<16> pick; }

parser MyParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    value_set<bit<16>>(2) types;
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { types: ip; 0x0800: ip; default: accept; }
    }
    state ip { packet.extract(hdr.ipv4); transition accept; }
}
control MyVerify(inout headers_t hdr, inout meta_t meta) { apply { } }
control MyCompute(inout headers_t hdr, inout meta_t meta) { apply { } }

control MyIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(8) seen;
    register<int<8>>(4) levels;
    register<bit<128>>(2) wide;
    counter(4, CounterType.packets_and_bytes) per_port;
    direct_counter(CounterType.packets_and_bytes) hits;
    meter(3, MeterType.packets) limit;
    direct_meter<bit<8>>(MeterType.packets) policer;
    action_profile(4) choices;
    action_selector(HashAlgorithm.crc16_custom, 8, 16) hashed;

    action drop() { mark_to_drop(standard); }
    action forward(bit<48> dst, bit<9> port) { hdr.ethernet.dst = dst; standard.egress_spec = port; }
    action multicast(bit<16> group) { standard.mcast_grp = group; }
    action mirror(bit<32> session) { clone(CloneType.I2E, session); standard.egress_spec = 1; }
    action set_tag(bit<8> tag) { meta.tag = tag; }
    action set_level(int<8> level) { hdr.ipv4.level = level; }
    action count_and_log() {
        seen.write(0, 7);
        per_port.count((bit<32>) standard.ingress_port);
        log_msg("port {}", { standard.ingress_port });
    }

    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; drop; multicast; mirror; @defaultonly NoAction; }
        default_action = drop();
        counters = hits;
        size = 4;
    }
    table exact_two {
        key = { hdr.ethernet.type: exact; hdr.ipv4.level: exact @name("level"); }
        actions = { set_tag; set_level; count_and_log; @tableonly drop; NoAction; }
        default_action = NoAction();
    }
    table filter {
        key = { hdr.ipv4.src: ternary; hdr.ipv4.kind: range; hdr.ethernet.src: optional; }
        actions = { set_tag; drop; NoAction; }
        const default_action = NoAction();
    }
    table fixed {
        key = { hdr.ipv4.kind: exact; }
        actions = { set_tag; NoAction; }
        const entries = { 1: set_tag(9); 2: set_tag(8); }
        default_action = NoAction();
    }
    table first {
        key = { hdr.ipv4.kind: exact; }
        actions = { set_tag; NoAction; }
        entries = { 1: set_tag(9); }
        default_action = NoAction();
    }
    table chosen {
        key = { hdr.ipv4.kind: exact; }
        actions = { set_tag; forward; NoAction; }
        implementation = choices;
    }
    table balanced {
        key = { hdr.ipv4.kind: exact; hdr.ipv4.src: selector; }
        actions = { set_tag; forward; NoAction; }
        implementation = hashed;
    }
    table policed {
        key = { hdr.ipv4.kind: exact; }
        actions = { NoAction; }
        meters = policer;
    }
    apply {
        routes.apply();
        exact_two.apply();
        filter.apply();
        fixed.apply();
        first.apply();
        chosen.apply();
        balanced.apply();
        policer.read(meta.tag);
        policed.apply();
        limit.execute_meter((bit<32>) 0, meta.tag);
    }
}
control MyEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { if (standard.egress_rid != 0) { hdr.ethernet.src = (bit<48>) standard.egress_rid; } }
}
control MyDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.ethernet); packet.emit(hdr.ipv4); }
}
V1Switch(MyParser(), MyVerify(), MyIngress(), MyEgress(), MyCompute(), MyDeparser()) main;
"""


@lru_cache(maxsize=1)
def program() -> ir.ProgramIr:
    return lower(check(parse_text(TEXT, "everything.p4")), "everything.p4")


def switch() -> ControlledSwitch:
    """A new one, on the Python back end."""
    return ControlledSwitch(PythonEngine(program()))


def packet(
    dst: str = "0a000105", src: str = "0a000001", kind: int = 1, level: int = 0, ether_type: str = "0800"
) -> bytes:
    return bytes.fromhex(f"ffffffffffff 000000000001 {ether_type} {src} {dst} {level & 0xFF:02x} {kind:02x}")
