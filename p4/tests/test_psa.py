"""Programs for the Portable Switch Architecture: its types, metadata, externs, the shape of its switch. What they do is
in features/psa_*."""

from pathlib import Path

import pytest

from p4vm.compile import checked_program, front_end
from p4vm.python.python_engine import PythonEngine
from p4vm.source import P4Error

PROGRAM = """#include <core.p4>
#include <psa.p4>
header ethernet_t { bit<48> to; bit<48> from; bit<16> kind; }
header sum_t { bit<16> sum; }
struct headers_t { ethernet_t ethernet; sum_t sum; }
struct meta_t { bit<16> hash; PSA_MeterColor_t color; }
struct nothing_t { }
struct learned_t { bit<48> from; PortId_t port; }

parser InParser(packet_in p, out headers_t h, inout meta_t m, in psa_ingress_parser_input_metadata_t i,
                in nothing_t resubmitted, in nothing_t recirculated) {
    state start { p.extract(h.ethernet); p.extract(h.sum); transition accept; }
}
control In(inout headers_t h, inout meta_t m, in psa_ingress_input_metadata_t i,
           inout psa_ingress_output_metadata_t o) {
    Counter<bit<64>, PortId_t>(256, PSA_CounterType_t.BYTES) seen;
    DirectCounter<bit<32>>(PSA_CounterType_t.PACKETS) hits;
    Meter<bit<8>>(16, PSA_MeterType_t.PACKETS) rate;
    Register<bit<32>, bit<8>>(16) cells;
    Hash<bit<16>>(PSA_HashAlgorithm_t.CRC16) hash;
    Random<bit<16>>(1, 9) dice;
    ActionProfile(64) profile;
    action forward(PortId_t port) { hits.count(); send_to_port(o, port); }
    table t {
        key = { h.ethernet.to : exact; }
        actions = { forward; NoAction; }
        psa_direct_counter = hits;
        psa_idle_timeout = PSA_IdleTimeout_t.NOTIFY_CONTROL;
    }
    table u { key = { h.ethernet.kind : exact; } actions = { NoAction; } psa_implementation = profile; }
    apply {
        seen.count(i.ingress_port);
        m.color = rate.execute((bit<8>)h.ethernet.kind, PSA_MeterColor_t.GREEN);
        cells.write(0, cells.read(0) + 1);
        m.hash = hash.get_hash((bit<16>)1, { h.ethernet.from, dice.read() }, (bit<16>)7);
        if (m.color != PSA_MeterColor_t.RED && t.apply().hit) { multicast(o, (MulticastGroup_t)5); }
        u.apply();
    }
}
control InDeparser(packet_out p, out nothing_t cloned, out nothing_t resubmitted, out nothing_t normal,
                   inout headers_t h, in meta_t m, in psa_ingress_output_metadata_t o) {
    Digest<learned_t>() learned;
    InternetChecksum() sum;
    apply {
        if (psa_normal(o)) { learned.pack({ h.ethernet.from, o.egress_port }); }
        sum.add({ h.ethernet.kind });
        h.sum.sum = sum.get();
        p.emit(h);
    }
}
parser OutParser(packet_in p, out headers_t h, inout meta_t m, in psa_egress_parser_input_metadata_t i,
                 in nothing_t normal, in nothing_t cloned, in nothing_t cloned_again) {
    state start { transition accept; }
}
control Out(inout headers_t h, inout meta_t m, in psa_egress_input_metadata_t i,
            inout psa_egress_output_metadata_t o) {
    apply { if (i.packet_path == PSA_PacketPath_t.CLONE_I2E) { egress_drop(o); } }
}
control OutDeparser(packet_out p, out nothing_t cloned, out nothing_t recirculated, inout headers_t h, in meta_t m,
                    in psa_egress_output_metadata_t o, in psa_egress_deparser_input_metadata_t d) {
    apply { p.emit(h); }
}
IngressPipeline(InParser(), In(), InDeparser()) ingress;
EgressPipeline(OutParser(), Out(), OutDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
"""


@pytest.mark.parametrize("include", ["psa.p4", "bmv2/psa.p4"])
def test_a_program_runs(include: str, tmp_path: Path) -> None:
    file = tmp_path / "p.p4"
    file.write_text(PROGRAM.replace("<psa.p4>", f"<{include}>"))
    program = front_end(file)
    assert [warning.partition(": ")[2] for warning in program.warnings] == [
        "table property psa_idle_timeout is ignored"
    ]
    engine = PythonEngine(program)
    assert engine.process(3, bytes(16)) == []  # no entry: dropped, as ingress is to do by default
    assert engine.counter_read("In.seen", 3) == (1, 16)
    assert engine.take_digests() == []  # the deparser has run, and psa_normal is false


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("= profile;", "= { profile, profile };", "property 'psa_implementation' of table 'u' is tuple"),
        ("rate.execute((bit<8>)", "rate.execute((bit<16>)", "argument 'index' of execute is bit<16>"),
        ("o.egress_port }", "(PortIdUint_t)1 }", "bit<32>"),
        (
            "Out(), OutDeparser()) egress",
            "Out(), InDeparser()) egress",
            "InDeparser cannot be an argument of EgressPipeline",
        ),
        ("egress_drop(o)", "o.resubmit = true", "has no field 'resubmit'"),
        ("multicast(o, (MulticastGroup_t)5)", "multicast(o, (PortId_t)5)", "PortId_t"),
    ],
)
def test_what_is_wrong_is_refused(old: str, new: str, error: str, tmp_path: Path) -> None:
    assert old in PROGRAM
    (tmp_path / "p.p4").write_text(PROGRAM.replace(old, new))
    with pytest.raises(P4Error) as caught:
        checked_program(tmp_path / "p.p4", (), None)
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("kind, PSA_MeterColor_t.GREEN)", "kind, PSA_MeterColor_t.RED)", "meters here know no color"),
        ("(1, 9)", "(9, 1)", "In.dice draws from 9 to 1"),
        ("InternetChecksum() sum;", "Checksum<bit<16>>(PSA_HashAlgorithm_t.CRC16) sum;", "extern Checksum is not one"),
    ],
)
def test_what_does_not_run_is_refused(old: str, new: str, error: str, tmp_path: Path) -> None:
    assert old in PROGRAM
    program = PROGRAM.replace(old, new)
    (tmp_path / "p.p4").write_text(program.replace("sum.add(", "sum.update(") if "Checksum<" in new else program)
    with pytest.raises(P4Error, match=error):
        PythonEngine(front_end(tmp_path / "p.p4"))
