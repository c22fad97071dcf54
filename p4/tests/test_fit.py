"""Whether a program fits a Tofino: each limit met and broken, and the line that a broken one names."""

import re
from pathlib import Path

import pytest

from p4vm.fit.chip_model import Fit
from p4vm.fit.fit_program import fit
from p4vm.fit.report import text
from p4vm.source import P4Error

FRAME = """#include <core.p4>
#include <tna.p4>
header h_t { bit<32> a; bit<32> b; bit<32> c; bit<32> d; bit<16> index; bit<8> kind; bit<8> other; }
struct headers_t { h_t h; }
struct meta_t { bit<32> x; bit<32> y; bit<1> flag; }
struct pair_t { bit<32> low; bit<32> high; }
@top@
parser InParser(packet_in pkt, out headers_t hdr, out meta_t meta, out ingress_intrinsic_metadata_t ig) {
    state start { pkt.extract(ig); pkt.advance(PORT_METADATA_SIZE); pkt.extract(hdr.h); transition accept; }
}
control In(inout headers_t hdr, inout meta_t meta, in ingress_intrinsic_metadata_t ig,
           in ingress_intrinsic_metadata_from_parser_t prsr, inout ingress_intrinsic_metadata_for_deparser_t dprsr,
           inout ingress_intrinsic_metadata_for_tm_t tm) {
@locals@
    apply {
@apply@
    }
}
control InDeparser(packet_out pkt, inout headers_t hdr, in meta_t meta,
                   in ingress_intrinsic_metadata_for_deparser_t dprsr) { apply { pkt.emit(hdr); } }
parser OutParser(packet_in pkt, out headers_t hdr, out meta_t meta, out egress_intrinsic_metadata_t eg) {
    state start { pkt.extract(eg); pkt.extract(hdr.h); transition accept; }
}
control Out(inout headers_t hdr, inout meta_t meta, in egress_intrinsic_metadata_t eg,
            in egress_intrinsic_metadata_from_parser_t prsr, inout egress_intrinsic_metadata_for_deparser_t dprsr,
            inout egress_intrinsic_metadata_for_output_port_t port) { apply { } }
control OutDeparser(packet_out pkt, inout headers_t hdr, in meta_t meta,
                    in egress_intrinsic_metadata_for_deparser_t dprsr) { apply { pkt.emit(hdr); } }
Pipeline(InParser(), In(), InDeparser(), OutParser(), Out(), OutDeparser()) pipe;
Switch(pipe) main;
"""
ADDING = """
    Register<bit<32>, bit<16>>(1024) r{n};
    RegisterAction<bit<32>, bit<16>, bit<32>>(r{n}) add{n} = {{
        void apply(inout bit<32> value, out bit<32> sum) {{ value = value + hdr.h.a; sum = value; }}
    }};
"""


def judged(tmp_path: Path, apply: str, locals_: str = "", top: str = "", **options: int) -> Fit:
    file = tmp_path / "p.p4"
    file.write_text(FRAME.replace("@top@", top).replace("@locals@", locals_).replace("@apply@", apply))
    return fit(file, **options)  # type: ignore[arg-type]


def adding(*numbers: int) -> str:
    return "".join(ADDING.format(n=number) for number in numbers)


def line_of(result: Fit, words: str, nth: int = 1) -> int:
    """The line of the program that holds these words."""
    lines = [number for number, line in enumerate(Path(result.file).read_text().splitlines(), 1) if words in line]
    return lines[nth - 1]


def only_fault(result: Fit) -> tuple[int, str]:
    assert len(result.faults) == 1, list(map(str, result.faults))
    return result.faults[0].position.line, result.faults[0].message


def test_a_program_without_registers_takes_one_stage(tmp_path: Path) -> None:
    result = judged(tmp_path, "hdr.h.b = hdr.h.a;\nhdr.h.d = hdr.h.c;")
    assert not result.faults
    assert (result.stages_used, len(result.units)) == (1, 1)
    assert result.header_bits["ingress"] == 160 + 65
    assert result.line_rate_share == 1


def test_what_needs_a_result_comes_a_stage_later(tmp_path: Path) -> None:
    result = judged(tmp_path, "meta.x = hdr.h.a;\nmeta.y = meta.x;\nhdr.h.b = meta.y;\nhdr.h.c = hdr.h.a;")
    assert [unit.stage for unit in result.units] == [0, 1, 2]
    assert result.stages_used == 3


def test_what_is_overwritten_may_be_read_in_the_same_stage(tmp_path: Path) -> None:
    result = judged(tmp_path, "hdr.h.b = hdr.h.a;\nhdr.h.a = hdr.h.c;")
    assert result.stages_used == 1


def test_a_condition_must_be_known_when_the_stage_begins(tmp_path: Path) -> None:
    result = judged(
        tmp_path, "meta.flag = 1;\nif (hdr.h.kind == 3) { hdr.h.b = 1; }\nif (meta.flag == 1) { hdr.h.c = 1; }"
    )
    assert [unit.stage for unit in result.units] == [0, 0, 1]


def test_four_registers_to_a_stage(tmp_path: Path) -> None:
    calls = "".join(f"hdr.h.{'abcd'[n % 4]} = add{n}.execute(hdr.h.index);\n" for n in range(1))
    assert judged(tmp_path, calls, adding(0)).stages_used == 1
    tables = "".join(f"    action do{n}() {{ add{n}.execute(hdr.h.index); }}\n" for n in range(5))
    result = judged(
        tmp_path, "".join(f"if (hdr.h.kind == {n}) {{ do{n}(); }}\n" for n in range(5)), adding(*range(5)) + tables
    )
    assert not result.faults
    assert [stage.stateful_alus for stage in result.stages[:2]] == [4, 1]


def test_a_register_is_touched_once_in_a_pass(tmp_path: Path) -> None:
    result = judged(tmp_path, "meta.x = add0.execute(hdr.h.index);\nmeta.y = add0.execute(hdr.h.index);", adding(0))
    line, message = only_fault(result)
    assert line == line_of(result, "meta.y = add0")
    assert message.startswith("register In.r0 is accessed a second time in one pass, after line ")


def test_the_subject_of_a_switch_touches_registers_as_a_condition_does(tmp_path: Path) -> None:
    for way in ("if (add0.execute(hdr.h.index) == 1) { }", "switch (add0.execute(hdr.h.index)) { 1: { } }"):
        result = judged(tmp_path, f"meta.x = add0.execute(hdr.h.index);\n{way}", adding(0))
        line, message = only_fault(result)
        assert line == line_of(result, way)
        assert message.startswith("register In.r0 is accessed a second time in one pass, after line ")


def test_within_one_action_too(tmp_path: Path) -> None:
    action = "    action both() {\n meta.x = add0.execute(hdr.h.index);\n meta.y = add0.execute(hdr.h.index);\n }\n"
    result = judged(tmp_path, "both();", adding(0) + action)
    line, message = only_fault(result)
    assert line == line_of(result, "meta.y = add0")
    assert "within action both" in message


def test_what_a_table_binds_its_actions_to_is_what_they_write(tmp_path: Path) -> None:
    top = "action put(inout bit<32> to, bit<32> value) { to = value; }"
    tables = """
    table t { key = { hdr.h.a : exact; } actions = { put(meta.x); } size = 16; }
    action other() { hdr.h.b = 1; }
    table u { key = { meta.x : exact; } actions = { other; } size = 16; }
"""
    assert judged(tmp_path, "t.apply();\nu.apply();", tables, top).stages_used == 2


def test_on_different_ways_it_may_be_touched_in_each(tmp_path: Path) -> None:
    calls = "if (hdr.h.kind == 1) { meta.x = add0.execute(hdr.h.index); }\nelse { meta.y = add0.execute(hdr.h.index); }"
    result = judged(tmp_path, calls, adding(0))
    assert not result.faults
    assert len({unit.stage for unit in result.units}) == 1, "a register lies in one stage"


def test_actions_of_a_table_exclude_each_other(tmp_path: Path) -> None:
    table = """
    action one() { meta.x = add0.execute(hdr.h.index); }
    action two() { meta.y = add0.execute(hdr.h.index); }
    table t { key = { hdr.h.kind : exact; } actions = { one; two; } size = 16; default_action = one(); }
"""
    result = judged(tmp_path, "t.apply();", adding(0) + table)
    assert not result.faults
    assert result.stages[0].stateful_alus == 1
    assert result.stages[0].sram_blocks == 1 + 2


def test_uses_that_need_each_other_cannot_lie_in_one_stage(tmp_path: Path) -> None:
    calls = """
    if (hdr.h.kind == 1) {
        meta.x = add0.execute(hdr.h.index); }
    else { meta.y = add1.execute(hdr.h.index);
        hdr.h.index = meta.y[15:0];
        meta.x = add0.execute(hdr.h.index); }
    if (hdr.h.other == 1) { hdr.h.d = meta.x; }"""
    result = judged(tmp_path, calls, adding(0, 1))
    assert not result.faults
    assert len({unit.stage for unit in result.units if any(a.memory.name == "In.r0" for a in unit.accesses)}) == 1


def test_a_chain_longer_than_the_stages_names_its_links(tmp_path: Path) -> None:
    chain = "".join(f"meta.{'xy'[n % 2]} = meta.{'yx'[n % 2]} + {n + 1};\n" for n in range(13))
    result = judged(tmp_path, chain)
    line, message = only_fault(result)
    assert line == line_of(result, "meta.x + 12") + 1
    assert "needs stage 13 of 12; it waits for: p.p4:" in message
    assert "meta.x" in message


def test_more_registers_than_stages_have_alus(tmp_path: Path) -> None:
    tables = "".join(f"    action do{n}() {{ add{n}.execute(hdr.h.index); }}\n" for n in range(49))
    calls = "".join(f"if (hdr.h.kind == {n}) {{ do{n}(); }}\n" for n in range(49))
    result = judged(tmp_path, calls, adding(*range(49)) + tables)
    line, message = only_fault(result)
    assert line == line_of(result, "do48();")
    assert "finds no room in stages 1 to 12: 5 stateful ALUs, a stage has 4" in message
    assert sum(stage.stateful_alus for stage in result.stages) == 48


BODY = """
    Register<@type@, bit<16>>(@cells@) r;
    RegisterAction<@type@, bit<16>, bit<32>>(r) act = {
        void apply(inout @type@ value, out bit<32> back) {
@body@
        }
    };
"""


def register(tmp_path: Path, body: str, kind: str = "bit<32>", cells: str = "64") -> Fit:
    locals_ = BODY.replace("@type@", kind).replace("@cells@", cells).replace("@body@", body)
    return judged(tmp_path, "hdr.h.d = act.execute(hdr.h.index);", locals_)


@pytest.mark.parametrize(
    ("body", "kind", "cells", "line", "message"),
    [
        ("value = value * 3; back = 0;", "bit<32>", "64", "value * 3", "a stateful ALU can't multiply"),
        (
            "if (value > 1) { value = 1; }\nif (value < 2) { value = 3; }\nif (value == hdr.h.a) { back = 0; }",
            "bit<32>", "64", "value == hdr.h.a", "3 comparisons; a stateful ALU makes 2",
        ),
        (
            "value = value + hdr.h.a + hdr.h.b\n + hdr.h.c; back = value;",
            "bit<32>", "64", "+ hdr.h.c; back", "takes 3 words from the packet (hdr.h.a, hdr.h.b, hdr.h.c)",
        ),
        (
            "if (value == 100) { value = 200; } else { value = 300; }\nif (value == 400) { value = 500; }\nback = 0;",
            "bit<32>", "64", "value == 400", "5 constants beyond -8 … 7; a stateful ALU keeps 4",
        ),
        ("back = 0;", "bit<24>", "64", "Register<bit<24>", "register r holds bit<24> (24 bits); a cell is one word"),
        ("back = 0;", "bit<32>", "200000", "Register<bit<32>", "r has 200000 cells of 32 bits; one stage holds"),
    ],
)  # fmt: skip
def test_what_a_stateful_alu_cannot_do(
    tmp_path: Path, body: str, kind: str, cells: str, line: str, message: str
) -> None:
    result = register(tmp_path, body, kind, cells)
    fault = next(fault for fault in result.faults if message in fault.message)
    assert fault.position.line == line_of(result, line)


def test_what_it_can_do(tmp_path: Path) -> None:
    body = "if (value.low == hdr.h.a) { value.high = value.high + 1; } else { value.high = 0 ; }\nback = value.high;"
    assert not register(tmp_path, body, "pair_t").faults
    assert not register(tmp_path, "value = value + 0xffffffff; back = value;").faults, "that is -1"


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        (
            "meta.x = hdr.h.a + hdr.h.b;\nhdr.h.c = meta.x + hdr.h.d;",
            "meta.x + hdr", "action both reads meta.x, which it computes before",
        ),
        (
            "meta.x = add0.execute(hdr.h.index);\nmeta.y = add1.execute(meta.x[15:0]);",
            "= add1.execute", "action both reads meta.x, which it computes before",
        ),
        ("hdr.h.c = hdr.h.a * hdr.h.b;", "hdr.h.a *", "Tofino's ALUs can't multiply"),
        ("if (hdr.h.kind == 1) {\nhdr.h.c = 1; }", "if (hdr.h.kind", "not on hdr.h.kind; use a table"),
    ],
)  # fmt: skip
def test_what_an_action_cannot_do(tmp_path: Path, body: str, line: str, message: str) -> None:
    result = judged(tmp_path, "both();", adding(0, 1) + f"    action both() {{\n{body}\n }}\n")
    where, found = only_fault(result)
    assert message in found
    assert where == line_of(result, line)


@pytest.mark.parametrize(
    "body",
    [
        "bit<32> old = hdr.h.a;\nhdr.h.a = hdr.h.b;\nhdr.h.b = old;",  # copies exchange fields
        "meta.x = add0.execute(hdr.h.index);\nhdr.h.c = meta.x & hdr.h.d;",  # an answer goes to an ALU of the stage
        "meta.x = hdr.h.a + hdr.h.b;\nhdr.h.c = meta.x;",
        "bit<16> at = hash.get({hdr.h.a});\nhdr.h.c = add0.execute(at);",
        "if (data == 1) { hdr.h.c = 1; }",  # an instruction is carried out or not by what the control plane gives
    ],
)
def test_what_an_action_can_do(tmp_path: Path, body: str) -> None:
    table = f"""    Hash<bit<16>>(HashAlgorithm_t.CRC16) hash;
    action act(bit<1> data) {{
{body}
    }}
    table t {{ key = {{ hdr.h.kind : exact; }} actions = {{ act; }} size = 16; }}
"""
    result = judged(tmp_path, "t.apply();", adding(0) + table)
    assert not result.faults, list(map(str, result.faults))
    assert not result.warnings
    assert result.stages_used == 1


def test_a_condition_orders_no_two_fields(tmp_path: Path) -> None:
    result = judged(tmp_path, "if (hdr.h.a < hdr.h.b) { hdr.h.c = 1; }")
    assert only_fault(result)[1].startswith("a condition can't order two fields (<)")
    assert not judged(tmp_path, "if (hdr.h.a < 5) { hdr.h.c = 1; }").faults


def test_too_many_headers(tmp_path: Path) -> None:
    top = "struct big_t { bit<2048> a; bit<2048> b; }"
    file = FRAME.replace("struct meta_t { bit<32> x;", "struct meta_t { bit<4096> big; bit<32> x;")
    (tmp_path / "p.p4").write_text(file.replace("@top@", top).replace("@locals@", "").replace("@apply@", ""))
    result = fit(tmp_path / "p.p4")
    assert not result.faults, "headers that exclude each other may share their place"
    assert [fault.message for fault in result.warnings] == [
        f"{where} headers, metadata and variables take 4321 bits; the header vector has 4096"
        for where in ("ingress", "egress")
    ]


def test_recirculation_is_charged_to_line_rate(tmp_path: Path) -> None:
    sent = "tm.ucast_egress_port = 68;"
    result = judged(tmp_path, sent)
    assert not result.faults
    assert [warning.position.line for warning in result.warnings] == [line_of(result, sent)]
    assert "nothing says how often" in result.warnings[0].message
    said = judged(tmp_path, sent, top="const bit<8> RECIRCULATIONS = 3;")
    assert not said.faults
    assert said.line_rate_share == 0.25
    assert judged(tmp_path, sent, recirculations=1).line_rate_share == 0.5
    assert not judged(tmp_path, "tm.ucast_egress_port = 3;").faults


def test_sub_controls_have_registers_of_their_own(tmp_path: Path) -> None:
    top = f"""control Sum(inout headers_t hdr, inout meta_t meta)(bit<32> cells) {{
{adding(0).replace("1024", "cells")}
    apply {{ meta.x = add0.execute(hdr.h.index); }}
}}"""
    result = judged(tmp_path, "one.apply(hdr, meta);\ntwo.apply(hdr, meta);", "Sum(2048) one;\nSum(512) two;", top)
    assert not result.faults
    assert {(m.name, m.entries) for m in result.memories} == {("In.one.r0", 2048), ("In.two.r0", 512)}


def test_what_is_no_tna_program(tmp_path: Path) -> None:
    (tmp_path / "v.p4").write_text("#include <core.p4>\nconst bit<8> x = 1;\n")
    with pytest.raises(P4Error, match="not a TNA program"):
        fit(tmp_path / "v.p4")
    with pytest.raises(P4Error, match=re.escape("a Tofino pipeline has no loops")):
        judged(tmp_path, "for (bit<8> i = 0; i < 3; i = i + 1) { hdr.h.a = 1; }")


def test_the_report_names_what_is_broken(tmp_path: Path) -> None:
    shown = text(judged(tmp_path, "hdr.h.a = hdr.h.b * hdr.h.c;\ntm.ucast_egress_port = 68;"))
    assert "It does not fit: 1 rule is broken" in shown
    assert re.search(r"\np\.p4:\d+:\d+: Tofino's ALUs can't multiply", shown.replace(f"{tmp_path}/", ""))
    assert re.search(r"warning: \S*p\.p4:\d+:\d+: packets go to a recirculation port", shown)


# ---- what compilers for Tofino take, and must not be refused


def test_any_index_type(tmp_path: Path) -> None:
    registers = """
    Register<bit<32>, _>(1024) r;
    RegisterAction<bit<32>, _, bit<32>>(r) act = {
        void apply(inout bit<32> value, out bit<32> back) { back = value; }
    };
"""
    assert not judged(tmp_path, "hdr.h.d = act.execute(hdr.h.index);\nhdr.h.c = hdr.h.a;", registers).faults
    result = judged(tmp_path, "hdr.h.d = r.read(0);", "Register<bit<32>, _>(1024) r;")
    assert not result.faults
    with pytest.raises(P4Error, match="cannot tell what type T of Register is"):
        judged(tmp_path, "hdr.h.d = r.read(hdr.h.index);", "Register<_, bit<16>>(1024) r;")


def test_a_branch_is_taken_by_what_was_known_before_it(tmp_path: Path) -> None:
    table = """
    action mark() { hdr.h.kind = 9; }
    table t { key = { hdr.h.other : exact; } actions = { mark; } size = 16; }
"""
    result = judged(tmp_path, "if (hdr.h.kind == 1) {\nt.apply();\nhdr.h.b = hdr.h.a + 1; }", table)
    assert result.stages_used == 1
    result = judged(tmp_path, "t.apply();\nif (hdr.h.kind == 1) { hdr.h.b = hdr.h.a + 1; }", table)
    assert result.stages_used == 2


def test_a_table_larger_than_a_stage_goes_on_in_the_next(tmp_path: Path) -> None:
    table = """
    action set(bit<32> b) { hdr.h.b = b; }
    table t { key = { hdr.h.a : exact; } actions = { set; } size = 200000; }
"""
    result = judged(tmp_path, "t.apply();", table)
    assert not result.faults
    assert not result.warnings
    assert [stage.sram_blocks for stage in result.stages if stage.units] == [80, 80, 36]
    touching = adding(0) + table.replace("hdr.h.b = b;", "hdr.h.b = add0.execute(hdr.h.index);")
    assert "finds no room" in judged(tmp_path, "t.apply();", touching).warnings[0].message, (
        "its register is in one stage"
    )


def test_cells_of_64_bits_and_concatenated_words(tmp_path: Path) -> None:
    assert not register(tmp_path, "back = 0;", "bit<64>").faults
    body = "value = hdr.h.index ++ hdr.h.kind ++ hdr.h.other; back = hdr.h.a;"
    result = register(tmp_path, body)
    assert not result.faults
    assert not result.warnings


def test_a_condition_may_ask_a_register(tmp_path: Path) -> None:
    result = judged(tmp_path, "if (add0.execute(hdr.h.index) == 1) { hdr.h.b = 1; }", adding(0))
    assert not result.faults
    assert [unit.stage for unit in result.units] == [0, 1]


@pytest.mark.parametrize(("end", "faults"), [("exit;", 0), ("return;", 0), ("", 1)])
def test_who_leaves_early_touches_no_register_later(tmp_path: Path, end: str, faults: int) -> None:
    calls = f"""
    if (hdr.h.kind == 1) {{ if (hdr.h.other == 1) {{ meta.x = add0.execute(hdr.h.index); {end} }} }}
    meta.y = add0.execute(hdr.h.index);"""
    assert len(judged(tmp_path, calls, adding(0)).faults) == faults


def test_registers_in_another_order_on_another_way(tmp_path: Path) -> None:
    """Neighbouring statements are free to lie in different stages."""
    calls = """
    if (hdr.h.kind == 1) { meta.x = add0.execute(hdr.h.index);
        if (meta.x == 1) { meta.y = add1.execute(hdr.h.index); } }
    else { meta.x = add0.execute(hdr.h.index);
        meta.y = add1.execute(hdr.h.index); }"""
    result = judged(tmp_path, calls, adding(0, 1))
    assert not result.faults
    assert result.stages_used == 2


def test_sizes_are_computed_from_what_a_control_is_made_with(tmp_path: Path) -> None:
    top = f"""control Sum(inout headers_t hdr, inout meta_t meta)(bit<32> cells = 1024) {{
{adding(0).replace("1024", "2 * cells")}
    apply {{ meta.x = add0.execute(hdr.h.index); }}
}}"""
    result = judged(tmp_path, "one.apply(hdr, meta);\ntwo.apply(hdr, meta);", "Sum() one;\nSum(512) two;", top)
    assert [memory.entries for memory in result.memories] == [2048, 1024]


def test_what_may_be_got_around_is_a_warning(tmp_path: Path) -> None:
    top = "struct many_t { " + "".join(f"bit<32> f{n}; " for n in range(14)) + "}"
    copies = "".join(f"many.f{n + 1} = many.f{n};\n" for n in range(13))
    result = judged(tmp_path, copies, "many_t many;", top)
    assert not result.faults, "all may copy the first"
    assert "needs stage 13 of 12" in result.warnings[0].message
    tables = [f"t{n}" for n in range(13)]
    misses = "".join(
        f"    action act{name}(bit<32> b) {{ hdr.h.b = b; }}\n    table {name} {{ key = {{ hdr.h.a : exact; }} "
        f"actions = {{ act{name}; NoAction; }} size = 16; }}\n"
        for name in tables
    )
    nested = "".join(f"if (!{name}.apply().hit) {{ " for name in tables) + "}" * len(tables)
    assert not judged(tmp_path, nested, misses).faults, "one of them writes"
    in_turn = "".join(f"{name}.apply();\n" for name in tables)
    assert "needs stage 13 of 12" in only_fault(judged(tmp_path, in_turn, misses))[1]


def test_a_parser_for_each_port(tmp_path: Path) -> None:
    locals_ = """
    Meter<bit<16>>(64, MeterType_t.BYTES) meter;
    DirectLpf<bit<32>>() smooth;
    action act() { hdr.h.b = smooth.execute(hdr.h.a); }
    table t { key = { hdr.h.kind : exact; } actions = { act; } size = 16; filters = smooth; }
"""
    apply = "t.apply();\nhdr.h.kind = meter.execute(hdr.h.index, MeterColor_t.GREEN, 0);"
    program = FRAME.replace("@top@", "").replace("@locals@", locals_).replace("@apply@", apply)
    program = (
        program[: program.index("Pipeline(")]
        + """
IngressParsers(InParser(), InParser()) in_parsers;
EgressParsers(OutParser()) out_parsers;
MultiParserPipeline(in_parsers, In(), InDeparser(), out_parsers, Out(), OutDeparser()) pipe;
MultiParserSwitch(pipe) main;
"""
    )
    (tmp_path / "p.p4").write_text(program)
    result = fit(tmp_path / "p.p4")
    assert not result.faults
    assert result.header_bits["ingress"] == 225
