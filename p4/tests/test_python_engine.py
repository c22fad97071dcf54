"""The Python back end: the pipeline's paths, the parser, externs and bounds, in programs that show what happened."""

from functools import cache

import differential
import programs
import pytest
import test_lower

from p4vm.check.check_program import check
from p4vm.engine import ActionCall, Digest, MeterRate, PacketReplica, TableEntry
from p4vm.front.parse_program import parse_text
from p4vm.ir import ir_nodes as ir
from p4vm.lower.lower_program import lower
from p4vm.python.python_engine import PythonEngine
from p4vm.source import P4Error, Position

FRAME = """
#include <core.p4>
#include <v1model.p4>
%s
control Verify(inout headers hdr, inout metadata meta) { apply { %s } }
control Compute(inout headers hdr, inout metadata meta) { apply { %s } }
control Deparse(packet_out packet, in headers hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
"""

PIPELINE = """
header command_t { bit<8> what; bit<8> more; bit<16> port; }
header seen_t { bit<8> kind; bit<8> egress; bit<16> rid; bit<32> length; bit<32> stamp; bit<8> kept; bit<8> lost; }
struct headers { seen_t[4] seen; command_t command; }
struct metadata { @field_list(1) bit<8> kept; bit<8> lost; bit<8> turn; }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.command); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = (bit<9>)hdr.command.port;
        bit<8> what = hdr.command.what;
        if (standard.instance_type == 0) {
            meta.kept = 7; meta.lost = 8; hdr.command.more = hdr.command.more + 1;
            if (what == 1) { resubmit_preserving_field_list(1); }
            if (what == 2) { clone_preserving_field_list(CloneType.I2E, 5, 1); }
            if (what == 3) { standard.mcast_grp = hdr.command.port; }
            if (what == 4) { standard.mcast_grp = 1; mark_to_drop(standard); }
            if (what == 5) { truncate(3); truncate(9); }
            if (what == 13) { truncate(5); }
            if (what == 19) { truncate(5); standard.mcast_grp = 1; }
            if (what == 6) { digest<tuple<bit<8>, bit<16>>>(3, { what, hdr.command.port }); }
            if (what == 7) { log_msg("what {} port {}", { what, hdr.command.port }); }
            if (what == 8) { assert(hdr.command.port == 1); }
            if (what == 9) { for (bit<32> i = 0; i < 70000; i = i + 1) { meta.turn = meta.turn + 1; } }
        }
        if (what == 10) { resubmit_preserving_field_list(1); }
        if (what == 17) { standard.mcast_grp = 3; }
        if (what == 18) { standard.mcast_grp = 1; standard.egress_spec = 511; }
    }
}
control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        bit<8> what = hdr.command.what;
        hdr.seen.push_front(1);
        hdr.seen[0].setValid();
        hdr.seen[0] = { standard.instance_type[7:0], standard.egress_port[7:0], standard.egress_rid,
            standard.packet_length, standard.egress_global_timestamp[31:0], meta.kept, meta.lost };
        meta.kept = meta.kept + 10;
        if (what == 11 && standard.instance_type != 2) { clone_preserving_field_list(CloneType.E2E, 5, 1); }
        if (what == 12) { mark_to_drop(standard); }
        if (what == 13) { hdr.command.what = 0; recirculate_preserving_field_list(1); }
        if (what == 14) { recirculate_preserving_field_list(1); }
        if (what == 15) { clone(CloneType.E2E, 5); }
        if (what == 16 && standard.instance_type != 2) { mark_to_drop(standard); clone(CloneType.E2E, 5); }
        if (what == 17) { recirculate_preserving_field_list(1); }
    }
}
"""


@cache
def program(text: str, verify: str = "", compute: str = "") -> ir.ProgramIr:
    return lower(check(parse_text(FRAME % (text, verify, compute), "test.p4")), "test.p4")


def piped() -> PythonEngine:
    engine = PythonEngine(program(PIPELINE))
    engine.set_group(1, [PacketReplica(1, 11), PacketReplica(2, 12)])
    engine.set_group(3, [PacketReplica(port, 0) for port in range(64)])
    return engine


def command(what: int, port: int = 4) -> bytes:
    return bytes([what, 0]) + port.to_bytes(2, "big") + b"rest"


def seen(data: bytes) -> dict[str, int]:
    """The first seen_t of a packet."""
    cuts = {"kind": 1, "egress": 1, "rid": 2, "length": 4, "stamp": 4, "kept": 1, "lost": 1}
    made, at = {}, 0
    for name, size in cuts.items():
        made[name] = int.from_bytes(data[at : at + size], "big")
        at += size
    return made


@pytest.fixture
def engine() -> PythonEngine:
    return piped()


def test_unicast_shows_egress_what_it_should(engine: PythonEngine) -> None:
    ((port, data),) = engine.process(3, command(0), 1234)
    assert port == 4
    assert seen(data) == {"kind": 0, "egress": 4, "rid": 0, "length": 8, "stamp": 1234, "kept": 7, "lost": 8}
    assert data[14:] == b"\0\1\0\4rest"
    assert (engine.counters.received, engine.counters.transmitted, engine.counters.dropped) == (1, 1, 0)


def test_resubmit_keeps_the_field_list_alone_and_starts_from_the_same_bytes(engine: PythonEngine) -> None:
    ((_, data),) = engine.process(3, command(1), 5)
    assert seen(data) | {"stamp": 0} == {
        "kind": 0,
        "egress": 4,
        "rid": 0,
        "length": 8,
        "stamp": 0,
        "kept": 7,
        "lost": 0,
    }
    assert data[14:18] == b"\1\0\0\4"


def test_an_ingress_clone_leaves_first_as_the_packet_came(engine: PythonEngine) -> None:
    engine.set_mirror(5, [PacketReplica(9)], group=1)
    out = engine.process(3, command(2), 5)
    assert [port for port, _ in out] == [1, 2, 9, 4]
    clone, original = out[2][1], out[3][1]
    assert seen(clone) == {"kind": 1, "egress": 9, "rid": 0, "length": 8, "stamp": 5, "kept": 7, "lost": 0}
    assert clone[14:18] == b"\2\0\0\4"
    assert original[14:18] == b"\2\1\0\4"
    assert seen(out[0][1])["rid"] == 11


def test_a_session_cuts_its_copies_and_may_be_unknown(engine: PythonEngine) -> None:
    assert [port for port, _ in engine.process(3, command(2))] == [4]
    engine.set_mirror(5, [PacketReplica(9)], truncate=10)
    assert [len(data) for _, data in engine.process(3, command(2))] == [10, 22]
    engine.set_mirror(5, [])
    assert len(engine.process(3, command(2))) == 1


def test_multicast_copies_in_order_with_their_instances(engine: PythonEngine) -> None:
    out = engine.process(3, command(3, 1))
    assert [(port, seen(data)["rid"], seen(data)["kind"]) for port, data in out] == [(1, 11, 5), (2, 12, 5)]
    assert len(engine.process(3, command(18))) == 2  # egress_spec starts anew
    assert engine.process(3, command(3, 2)) == []
    assert engine.counters.dropped == 1


def test_drops_before_and_after_egress(engine: PythonEngine) -> None:
    assert engine.process(3, command(4)) == engine.process(3, command(12)) == engine.process(3, command(0, 511)) == []
    assert engine.counters.dropped == 3


def test_truncate_keeps_the_smallest_length(engine: PythonEngine) -> None:
    assert [len(data) for _, data in engine.process(3, command(5))] == [3]
    assert [len(data) for _, data in engine.process(3, command(19))] == [22, 22]  # multicast copies are whole


def test_an_egress_clone_keeps_headers_and_field_list(engine: PythonEngine) -> None:
    engine.set_mirror(5, [PacketReplica(9)])
    (first, data), (second, clone) = engine.process(3, command(11), 5)
    assert (first, second) == (4, 9)
    assert len(clone) == len(data) + 14
    assert seen(clone) == {"kind": 2, "egress": 9, "rid": 0, "length": 8, "stamp": 5, "kept": 17, "lost": 0}
    assert seen(clone[14:])["kind"] == 0
    assert [port for port, _ in engine.process(3, command(16))] == [9]  # the dropped packet's clone


def test_an_egress_clone_is_taken_before_compute() -> None:
    engine = PythonEngine(program(PIPELINE, "", "hdr.command.more = hdr.command.more + 100;"))
    engine.set_mirror(5, [PacketReplica(9)])
    (_, data), (_, clone) = engine.process(3, command(11))
    assert data[15] == clone[14 + 15] == 101


def test_recirculation_parses_what_was_deparsed(engine: PythonEngine) -> None:
    # whole, although ingress asked for 5 bytes; the second pass takes the seen_t for a command: what 0, port 0
    ((port, data),) = engine.process(3, command(13), 5)
    assert port == 0
    assert seen(data) == {"kind": 0, "egress": 0, "rid": 0, "length": 22, "stamp": 5, "kept": 17, "lost": 0}


def test_digest_and_log(engine: PythonEngine) -> None:
    engine.process(3, command(6, 2))
    engine.process(3, command(7, 2))
    assert engine.take_digests() == [Digest(3, (6, 2))]
    assert engine.take_digests() == []
    assert engine.take_log() == ["what 7 port 2"]
    assert engine.take_log() == []


def test_a_failed_assert_drops_the_packet_and_says_where(engine: PythonEngine) -> None:
    assert len(engine.process(3, command(8, 1))) == 1
    assert engine.process(3, command(8, 2)) == []
    (line,) = engine.take_log()
    assert line.startswith("test.p4:")
    assert line.endswith(": assert failed")
    assert engine.counters.names == {"assert_failed": 1}
    assert engine.counters.dropped == 1


def test_endless_work_ends(engine: PythonEngine) -> None:
    assert engine.process(3, command(9)) == []
    assert engine.counters.too_many_turns == 1
    assert engine.process(3, command(10)) == []
    assert engine.counters.too_many_passes == 1
    engine.set_mirror(5, [PacketReplica(9)])
    # the packet itself and 256 clones leave, the next is dropped
    assert len(engine.process(3, command(15))) == 257
    assert engine.counters.too_many_passes == 2
    assert engine.process(3, bytes(1 << 17 | 1)) == []
    assert engine.counters.names["oversize"] == 1


def test_copies_that_multiply_end(engine: PythonEngine) -> None:
    # seen_t starts with kind and port: a packet for port 17 with type 17 would come back 64 times each
    engine.set_mirror(5, [PacketReplica(1), PacketReplica(2), PacketReplica(3)])
    out = engine.process(3, command(15))
    assert len(out) == 4095
    assert engine.counters.too_many_passes > 0
    assert engine.counters.dropped == engine.counters.too_many_passes


def test_reset_forgets_what_happened_and_keeps_what_was_set(engine: PythonEngine) -> None:
    engine.process(3, command(7))
    engine.reset()
    assert engine.counters.received == 0
    assert engine.take_log() == []
    assert len(engine.process(3, command(3, 1))) == 2


PARSER = """
header kind_t { bit<8> kind; }
header tag_t { bit<8> last; }
header long_t { bit<8> size; varbit<64> options; }
header odd_t { bit<3> a; int<5> b; bit<7> c; bool d; }
header half_t { bit<4> four; }
header_union either_t { tag_t tag; odd_t odd; }
header result_t { bit<8> fault; bit<8> extra; }
struct headers { result_t result; kind_t kind; tag_t[3] tags; long_t long; odd_t odd; either_t either; half_t half; }
struct metadata { bit<8> extra; }
error { Mine }
parser Inner(packet_in packet, out bit<8> size) {
    state start { size = packet.lookahead<bit<8>>(); packet.advance(8); transition accept; }
}
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    value_set<bit<8>>(4) tagged;
    Inner() inner;
    state start {
        packet.extract(hdr.kind);
        transition select(hdr.kind.kind) {
            tagged: tags; 1: tags; 2: long; 3: odd; 4: looks; 5: turns; 6: checked; 7: either; 8: jump; 9: inside;
            10: half; 20 .. 29: accept; 0x40 &&& 0xF0: reject;
        }
    }
    state tags {
        packet.extract(hdr.tags.next);
        meta.extra = (bit<8>)hdr.tags.lastIndex;
        transition select(hdr.tags.last.last) { 0: tags; default: accept; }
    }
    state long {
        hdr.long.size = packet.lookahead<bit<8>>();
        packet.extract(hdr.long, (bit<32>)hdr.long.size);
        transition accept;
    }
    state odd { packet.extract(hdr.odd); transition accept; }
    state looks {
        odd_t ahead = packet.lookahead<odd_t>();
        meta.extra = (bit<8>)(bit<5>)ahead.b;
        transition accept;
    }
    state turns { transition turns; }
    state checked { verify(packet.length() > 4, error.Mine); transition accept; }
    state either { packet.extract(hdr.either.tag); packet.extract(hdr.either.odd); transition accept; }
    state jump { packet.advance(16); transition accept; }
    state half { packet.extract(hdr.half); transition accept; }
    state inside { inner.apply(packet, meta.extra); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        hdr.result.setValid();
        hdr.result.extra = meta.extra;
        if (standard.parser_error == error.NoError) { hdr.result.fault = 0; }
        if (standard.parser_error == error.PacketTooShort) { hdr.result.fault = 1; }
        if (standard.parser_error == error.NoMatch) { hdr.result.fault = 2; }
        if (standard.parser_error == error.StackOutOfBounds) { hdr.result.fault = 3; }
        if (standard.parser_error == error.HeaderTooShort) { hdr.result.fault = 4; }
        if (standard.parser_error == error.ParserTimeout) { hdr.result.fault = 5; }
        if (standard.parser_error == error.ParserInvalidArgument) { hdr.result.fault = 6; }
        if (standard.parser_error == error.Mine) { hdr.result.fault = 7; }
    }
}
control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
"""


@pytest.mark.parametrize(
    ("what", "data", "expected"),
    [
        ("nothing there", "", "0100"),
        ("no case", "0f aa", "0200 0f aa"),
        ("explicit reject", "42 aa", "0000 42 aa"),
        ("range", "15 aa", "0000 15 aa"),
        ("stack", "01 00 00 05 bb", "0002 01 00 00 05 bb"),
        ("stack too deep", "01 00 00 00 05", "0302 01 00 00 00 05"),
        ("stack cut short", "01 00", "0100 01 00"),
        ("varbit", "02 10 aa bb cc", "0000 02 10 aa bb cc"),
        ("varbit of no whole bytes", "02 09 aa bb", "0600 02 09 aa bb"),
        ("varbit beyond the packet", "02 20 aa bb", "0100 02 20 aa bb"),
        ("varbit beyond its type", "02 48" + "aa" * 12, "0400 02 48" + "aa" * 12),
        ("odd fields", "03 e5 81 77", "0000 03 e5 81 77"),
        ("lookahead leaves the packet", "04 1f 00 77", "001f 04 1f 00 77"),
        ("lookahead too short", "04 1f", "0100 04 1f"),
        ("endless", "05 aa", "0500 05 aa"),
        ("verify fails", "06 aa bb", "0700 06 aa bb"),
        ("verify holds", "06 aa bb cc dd", "0000 06 aa bb cc dd"),
        ("union: the last one", "07 01 e5 81 99", "0000 07 e5 81 99"),
        ("advance", "08 01 02 03", "0000 08 03"),
        ("advance too far", "08 01", "0100 08 01"),
        ("half a byte", "0a 7f 33", "0000 0a 70 33"),
        ("sub-parser", "09 2a ff", "002a 09 ff"),
    ],
)
def test_parser(what: str, data: str, expected: str) -> None:
    engine = PythonEngine(program(PARSER))
    ((_, out),) = engine.process(0, bytes.fromhex(data))
    assert out.hex() == bytes.fromhex(expected).hex(), what
    rejects = expected[:2] != "00" or what == "explicit reject"
    assert engine.counters.parser_rejected == rejects


def test_value_sets_come_from_the_control_plane() -> None:
    engine = PythonEngine(program(PARSER))
    data = bytes.fromhex("33 05")
    assert engine.process(0, data)[0][1][:1] == b"\2"
    engine.set_value_set("Parse.tagged", [((0x32, None),), ((0x33, None),)])
    assert engine.process(0, data) == [(0, bytes.fromhex("0000 33 05"))]


EXTERNS = """
header work_t { bit<8> what; bit<32> a; bit<32> b; bit<64> result; }
header sum_t { bit<16> one; bit<16> two; bit<16> check; }
struct headers { work_t work; sum_t sum; }
struct metadata { bit<8> color; }
parser Parse(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.work); transition select(hdr.work.what) { 20: sum; default: accept; } }
    state sum { packet.extract(hdr.sum); transition accept; }
}
control In(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    register<bit<100>>(4) wide;
    register<int<8>>(4) small;
    counter(4, CounterType.packets_and_bytes) tally;
    meter(4, MeterType.packets) limit;
    direct_counter(CounterType.packets) hits;
    direct_meter<bit<8>>(MeterType.bytes) policer;
    action_selector(HashAlgorithm.crc16, 8, 8) ways;
    action note(bit<32> value) { policer.read(meta.color); hdr.work.result = 24w0 ++ meta.color ++ value; }
    action way(bit<32> value) { hdr.work.result[31:0] = value; }
    table counted { key = { hdr.work.a: exact; } actions = { note; NoAction; } counters = hits; meters = policer; }
    table chosen {
        key = { hdr.work.a: exact; hdr.work.b: selector; }
        actions = { way; NoAction; }
        implementation = ways;
    }
    apply {
        bit<8> what = hdr.work.what;
        bit<32> a = hdr.work.a;
        bit<16> short = 0;
        bit<32> word = 0;
        bit<64> long = 0;
        if (what == 1) { bit<100> v; wide.read(v, a); wide.write(a, v + (bit<100>)hdr.work.b); long = v[63:0]; }
        if (what == 2) { int<8> v; small.read(v, a); small.write(a, v - 100); long = (bit<64>)(int<64>)v; }
        if (what == 3) { tally.count(a); }
        if (what == 4) { bit<2> color; limit.execute_meter(a, color); long = (bit<64>)color; }
        if (what == 5) { hash(short, HashAlgorithm.crc16, 16w0, { a, hdr.work.b }, 32w65536); long = (bit<64>)short; }
        if (what == 6) { hash(word, HashAlgorithm.crc32, 32w10, { a, hdr.work.b }, 32w100); long = (bit<64>)word; }
        if (what == 7) { hash(short, HashAlgorithm.csum16, 16w3, { a }, 32w0); long = (bit<64>)short; }
        if (what == 8) { hash(long, HashAlgorithm.identity, 64w0, { hdr.work.what, a }, 64w0xFFFFFFFFFFFFFFFF); }
        if (what == 9) { hash(short, HashAlgorithm.xor16, 16w0, { 4w1, a }, 32w65536); long = (bit<64>)short; }
        if (what == 10) { random(word, a, hdr.work.b); long = (bit<64>)word; }
        hdr.work.result = long;
        if (what == 11) { counted.apply(); }
        if (what == 12) { chosen.apply(); }
        if (what >= 20) { hdr.work.result = (bit<64>)standard.checksum_error; }
    }
}
control Out(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
"""
VERIFY = "verify_checksum(true, { hdr.sum.one, hdr.sum.two }, hdr.sum.check, HashAlgorithm.csum16);"
COMPUTE = (
    "update_checksum_with_payload(hdr.sum.isValid(), { hdr.sum.one, hdr.sum.two }, hdr.sum.check,"
    " HashAlgorithm.csum16);"
)


@pytest.fixture
def externs() -> PythonEngine:
    return PythonEngine(program(EXTERNS, VERIFY, COMPUTE))


def work(engine: PythonEngine, what: int, a: int = 0, b: int = 0, rest: bytes = b"", now_us: int = 0) -> int:
    """The result of one packet."""
    data = bytes([what]) + a.to_bytes(4, "big") + b.to_bytes(4, "big") + bytes(8) + rest
    ((_, out),) = engine.process(0, data, now_us)
    return int.from_bytes(out[9:17], "big")


def test_registers_of_any_width_and_beyond_their_end(externs: PythonEngine) -> None:
    assert [work(externs, 1, 2, 7) for _ in range(3)] == [0, 7, 14]
    externs.register_write("In.wide", 2, (1 << 100) - 1)
    work(externs, 1, 2, 2)
    assert externs.register_read("In.wide", 2) == 1
    assert work(externs, 1, 4, 7) == 0
    assert externs.counters.names == {"register_out_of_range": 2}
    assert [work(externs, 2, 1) for _ in range(3)] == [0, (1 << 64) - 100, 56]
    externs.register_reset("In.wide")
    assert externs.register_read("In.wide", 2) == 0


def test_counters(externs: PythonEngine) -> None:
    work(externs, 3, 1, rest=b"abc")
    work(externs, 3, 1)
    work(externs, 3, 9)
    assert externs.counter_read("In.tally", 1) == (2, 37)
    assert externs.counters.names == {"counter_out_of_range": 1}
    externs.counter_write("In.tally", 1, 5, 6)
    assert externs.counter_read("In.tally", 1) == (5, 6)
    externs.counter_reset("In.tally")
    assert externs.counter_read("In.tally", 1) == (0, 0)


def test_meters(externs: PythonEngine) -> None:
    assert work(externs, 4, 1) == 0
    externs.meter_set_rates("In.limit", 1, [MeterRate(0.001, 1), MeterRate(0.001, 2)])
    assert [work(externs, 4, 1) for _ in range(3)] == [0, 1, 2]
    assert work(externs, 4, 1, now_us=5000) == 0
    externs.reset()
    assert [work(externs, 4, 1) for _ in range(3)] == [0, 1, 2]
    externs.meter_set_rates("In.limit", 1, [])
    assert work(externs, 4, 1) == 0


def test_hashes(externs: PythonEngine) -> None:
    digits = (0x31323334, 0x35363738)
    assert work(externs, 5, *digits) == 0x3C9D  # CRC-16/ARC of "12345678"
    assert work(externs, 6, *digits) == 10 + 0x9AE0DAAF % 100  # CRC-32 of "12345678"
    assert work(externs, 7, 0x0001F203) == 3  # a limit of 0 counts as 1
    assert work(externs, 8, 0x01020304) == 0x0801020304
    assert work(externs, 9, 0x23456789) == 0x1234 ^ 0x5678 ^ 0x9000


def test_random_stays_within_and_starts_anew_with_reset(externs: PythonEngine) -> None:
    first = [work(externs, 10, 5, 9) for _ in range(50)]
    assert set(first) == {5, 6, 7, 8, 9}
    assert work(externs, 10, 9, 5) == 0
    externs.reset()
    assert [work(externs, 10, 5, 9) for _ in range(50)] == first


def test_direct_counter_and_meter_follow_their_entry(externs: PythonEngine) -> None:
    entry = TableEntry(((1, None),), ActionCall(0, (77,)), handle=4)
    other = TableEntry(((2, None),), ActionCall(0, (78,)), handle=5)
    none = ActionCall(1)
    externs.set_table("In.counted", [entry, other], none)
    externs.meter_set_rates("In.policer", 4, [MeterRate(0, 20)])
    assert [work(externs, 11, 1) for _ in range(2)] == [77, 1 << 32 | 77]
    assert work(externs, 11, 2) == 78
    assert work(externs, 11, 3) == 0
    externs.set_table("In.counted", [entry], none)
    assert externs.counter_read("In.hits", 4) == (2, 34)
    assert externs.counter_read("In.hits", 5) == (0, 0)


def test_a_selector_spreads_over_the_members_of_its_group(externs: PythonEngine) -> None:
    from p4vm.algorithms import crc16
    from p4vm.engine import GroupRef, MemberRef

    externs.set_profile("In.ways", {3: ActionCall(0, (30,)), 1: ActionCall(0, (10,))}, {0: (3, 1), 1: ()})
    keys = [((1, None),), ((2, None),), ((3, None),), ((4, None),)]
    refs = [GroupRef(0), GroupRef(1), MemberRef(3), MemberRef(9)]
    entries = [TableEntry(key, ref, handle=at) for at, (key, ref) in enumerate(zip(keys, refs, strict=True))]
    externs.set_table("In.chosen", entries, ActionCall(1))
    got = [work(externs, 12, 1, b) for b in range(20)]
    assert got == [(10, 30)[crc16(b.to_bytes(4, "big")) % 2] for b in range(20)]
    assert set(got) == {10, 30}
    assert [work(externs, 12, a) for a in (2, 3, 4, 5)] == [0, 30, 0, 0]


def test_checksums_are_verified_and_computed_with_the_payload(externs: PythonEngine) -> None:
    good = bytes.fromhex("0001 f203 0dfb")
    assert work(externs, 20, rest=good) == 0
    assert work(externs, 21) == 0  # the field's header isn't there
    assert work(externs, 20, rest=bytes.fromhex("0001 f203 0dfa")) == 1
    ((_, out),) = externs.process(0, bytes([20]) + bytes(16) + good + bytes.fromhex("f4f5 f6f7"))
    assert out[17:].hex() == "0001f203220df4f5f6f7"


def test_the_low_bits_of_a_whole_expression_are_the_session() -> None:
    ingress = programs.empty_control("MyIngress", standard=True)
    seen_field = programs.member(programs.parameter(ingress, "meta"), "seen")
    session = ir.Binary(ir.Bits(32), "|", programs.bits(32, 0x8001), seen_field)
    ingress.body = [ir.CallExtern("clone", None, [session, programs.bits(32, 9)])]
    engine = PythonEngine(programs.program(ingress, []))
    engine.set_mirror(1, [PacketReplica(3, 0)])
    assert 3 in [port for port, _ in engine.process(0, bytes(14))]


def test_what_there_isnt_is_named() -> None:
    ingress = programs.empty_control("MyIngress", standard=True)
    ingress.body = [ir.CallExtern("warp", None, [])]
    with pytest.raises(P4Error, match="no extern warp"):
        PythonEngine(programs.program(ingress, []))


def test_deep_expressions_and_blocks() -> None:
    chain = "meta.wide"
    for _ in range(70):
        chain = f"(~{chain} + 1)"
    body = f"meta.wide = {chain}; hdr.h.c = meta.wide[7:0] - 8w1; hdr.h.d = hdr.h.d " + "+ hdr.h.a " * 180 + ";"
    assert test_lower.ran(body=body)[2:4] == bytes([0xFF, 4 + 180])
    ingress = programs.empty_control("MyIngress", standard=True)
    nested: list[ir.Statement] = []
    for _ in range(200):
        valid = ir.Valid(ir.Bool(), programs.member(programs.parameter(ingress, "hdr"), "ethernet"))
        nested = [ir.If([(valid, nested)], [])]
    ingress.body = nested
    with pytest.raises(P4Error, match="nests deeper"):
        PythonEngine(programs.program(ingress, []))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", [PIPELINE, PARSER, EXTERNS], ids=["pipeline", "parser", "externs"])
def test_no_packet_and_no_entry_makes_it_raise(text: str, seed: int) -> None:
    made = program(text, *((VERIFY, COMPUTE) if text is EXTERNS else ()))
    assert differential.compare(PythonEngine(made), PythonEngine(made), seed=seed, packets=100) > 0


def test_the_differential_test_sees_a_difference() -> None:
    one, other = PythonEngine(programs.counter_of_ports()), PythonEngine(programs.counter_of_ports())
    other.register_write("MyIngress.seen", 2, 1)
    with pytest.raises(differential.Different, match="seed 0"):
        differential.compare(one, other)


def test_the_source_is_readable_python() -> None:
    source = PythonEngine(programs.forwarder()).source
    compile(source, "<source>", "exec")
    assert "def MyIngress_forward(packet, port, standard):" in source
    assert "standard.egress_spec = port" in source


def test_a_name_is_no_code() -> None:
    made = programs.forwarder()
    made.file = 'x"""\nraise SystemExit\n"""\\'
    made.routines[0].position = Position('y"""+boom()+"""', 1, 1)
    assert len(PythonEngine(made).process(3, bytes(5) + b"\1" + bytes(8))) == 1
