"""Lowering: what the control plane sees, what is refused, and how it shows."""

import re
from pathlib import Path

import pytest
from test_lower import ADD, FRAME, PACKET, ingress_text, lowered, ran

from p4vm.check.check_program import check
from p4vm.front.parse_program import parse_text
from p4vm.ir import ir_nodes as ir
from p4vm.ir import ir_text
from p4vm.lower.lower_program import lower
from p4vm.source import P4Error

# ---- names of the control plane

NAMES = """
    action plain() {}
    @name("other") action renamed() {}
    @name(".far.away") action absolute() {}
    table t {
        key = {
            hdr.h.a : exact;
            hdr.s[1].x : ternary;
            hdr.h.b[3:0] : exact;
            hdr.h.isValid() : exact;
            hdr.h.c : lpm @name("given");
            meta.i : exact;
        }
        actions = { plain; renamed; absolute; top_action; @defaultonly NoAction; }
        default_action = NoAction();
    }
    @name("mine") table u { actions = { plain; } }
    @name(".v") table v { actions = { plain; } implementation = action_profile(8); counters = c; }
    direct_counter(CounterType.packets) c;
    register<bit<32>>(7) r;
    @name("deep") Sub() sub1;
    Sub() sub2;
"""
SUB = """
    action top_action() {}
    register<bit<8>>(3) outside;
    control Sub(inout bit<8> x) {
        counter(4, CounterType.bytes) n;
        action act() { n.count((bit<32>)x); }
        table t { actions = { act; } }
        apply { t.apply(); }
    }
"""


def test_names_of_the_control_plane() -> None:
    local = re.sub(r"(@name\(\"\.v\"\).*\n)(.*direct_counter.*\n)", r"\2\1", NAMES)
    body = "t.apply(); u.apply(); v.apply(); sub1.apply(hdr.h.a); sub2.apply(hdr.h.b); Sub.apply(hdr.h.c);"
    program = lowered(SUB, local, body)
    tables = {table.name: table for table in program.tables}
    assert set(tables) == {"I.t", "I.mine", "v", "I.deep.t", "I.sub2.t", "I.Sub.t"}
    assert [key.name for key in tables["I.t"].keys] == [
        "hdr.h.a",
        "hdr.s[1].x",
        "hdr.h.b[3:0]",
        "hdr.h.$valid$",
        "given",
        "meta.i",
    ]
    assert tables["I.t"].keys[5].expression.type == ir.Bits(8)
    assert [action.name for action in tables["I.t"].actions] == [
        "I.plain",
        "I.other",
        "far.away",
        "top_action",
        "NoAction",
    ]
    assert tables["I.t"].actions[4].default_only
    assert [action.name for action in tables["I.mine"].actions] == ["I.plain", "NoAction"]
    assert tables["v"].implementation is not None
    assert tables["v"].implementation.arguments == (8,)
    assert tables["v"].counter is not None
    externs = {extern.name: extern for extern in program.externs}
    assert {"outside", "I.r", "I.c", "I.deep.n", "I.sub2.n", "I.Sub.n"} < set(externs)
    assert externs["I.r"].arguments == (7,)
    assert externs["I.r"].type_arguments == (ir.Bits(32),)
    assert externs["I.sub2.n"].arguments == (4, "bytes")


ENTRIES = """
    action set(bit<8> v) {{ hdr.h.d = v; }}
    table t {{
        key = {{ hdr.h.a : {0}; }}
        actions = {{ set; NoAction; }}
        {1} entries = {{ {2} }}
        {3}
        default_action = NoAction();
    }}
"""


@pytest.mark.parametrize(
    ("match", "written", "more", "expected"),
    [
        ("exact", "1 : set(5); 8w0xFF : NoAction();", "", [((1, None), 0, (5,), None), ((255, None), 1, (), None)]),
        ("lpm", "0x50 &&& 0xF0 : set(1); 7 : set(2); _ : set(3);", "", [
            ((0x50, 4), 0, (1,), None), ((7, 8), 0, (2,), None), ((0, 0), 0, (3,), None)]),
        ("ternary", "0x55 &&& 0x0F : set(1); 7 : set(2); _ : set(3);", "", [
            ((5, 15), 0, (1,), 1), ((7, 255), 0, (2,), 2), ((0, 0), 0, (3,), 3)]),
        ("range", "1 .. 4 : set(1); 9 : set(2); _ : set(3);", "", [
            ((1, 4), 0, (1,), 1), ((9, 9), 0, (2,), 2), ((0, 255), 0, (3,), 3)]),
        ("optional", "9 : set(2); _ : set(3);", "", [((9, 255), 0, (2,), 1), ((0, 0), 0, (3,), 2)]),
        ("ternary", "7 : set(2) @priority(9); 8 : set(3) @priority(3);", "", [
            ((7, 255), 0, (2,), 9), ((8, 255), 0, (3,), 3)]),
        ("ternary", "priority = 10 : 7 : set(2); 8 : set(3);", "largest_priority_wins = false; priority_delta = 10;", [
            ((7, 255), 0, (2,), 10), ((8, 255), 0, (3,), 20)]),
        ("ternary", "priority = 10 : 7 : set(2); priority = 30 : 8 : set(3); 9 : set(4);", "", [
            ((7, 255), 0, (2,), 21), ((8, 255), 0, (3,), 1), ((9, 255), 0, (4,), 2)]),
    ],
)  # fmt: skip
def test_entries(match: str, written: str, more: str, expected: list[tuple[object, ...]]) -> None:
    const = "" if "priority =" in written else "const"
    program = lowered("", ENTRIES.format(match, const, written, more), "t.apply();")
    found = program.tables[0].entries
    assert [(entry.keys[0], entry.action, entry.arguments, entry.priority) for entry in found] == expected
    assert program.tables[0].entries_const == bool(const)


def test_names_that_annotations_and_types_give() -> None:
    top = 'struct N { @name("outer") bit<8> inner; @name(".gone") bit<8> far; } @name("unseen")'
    local = """
        N n;
        action act(@name("out_port") bit<9> port) { sm.egress_spec = port; }
        table t {
            key = { n.inner : exact; n.far : exact; hdr.h.a & 0xF : exact; hdr.s[hdr.h.b].x : exact; }
            actions = { act; NoAction; }
            const entries = { (1, 2, 3, 4) : act(5); }
        }
    """
    text = FRAME.replace("@top@", "").replace("@locals@", local).replace("@body@", "t.apply();")
    text = text.replace("control I(", top + " control I(")
    program = lower(check(parse_text(text)), "test.p4")
    (table,) = program.tables
    assert table.name == "I.t"
    assert [key.name for key in table.keys] == ["n.outer", "gone", "hdr.h.a & 0xf", "hdr.s[hdr.h.b].x"]
    assert [parameter.variable.name for parameter in table.actions[0].data] == ["out_port"]
    assert (table.entries[0].arguments, table.size) == ((5,), 1)


def test_constructor_arguments_make_routines_of_their_own() -> None:
    top = """
        control Sub(inout bit<8> x)(bit<8> step, register<bit<8>> cells) {
            apply { if (step == 1) { x = x + step; } else { cells.write(0, step); } }
        }
    """
    program = lowered(
        top, "register<bit<8>>(2) r; Sub(1, r) one; Sub(2, r) two;", "one.apply(hdr.h.a); two.apply(hdr.h.b);"
    )
    texts = {routine.name: ir_text.routine(routine).split("\n")[1:] for routine in program.routines}
    assert texts["I.one"] == ["    x = (x + 8w1)"]
    assert texts["I.two"] == ["    I.r[32w0] = 8w2"]


def test_switch_on_the_action_that_ran() -> None:
    local = "action a() {} action b() {} action c() {} table t { actions = { a; b; c; } default_action = b(); }"
    body = "switch (t.apply().action_run) { a: { hdr.h.a = 7; } c: b: { hdr.h.a = 8; } default: { hdr.h.a = 9; } }"
    assert ran("", local, body)[0] == 8
    assert "else if ((t == I.t.I.c) || (t == I.t.I.b))" in ingress_text(lowered("", local, body))


def test_field_lists() -> None:
    program = lower(
        check(
            parse_text(
                FRAME.replace("bit<8> m;", "@field_list(1, 2) bit<8> m;")
                .replace("bool flag;", "Inner inner;")
                .replace(
                    "struct Meta",
                    "const bit<8> TWO = 2; struct Inner { @field_list(TWO) bit<4> z; bit<4> w; } struct Meta",
                )
                .replace("@top@", "")
                .replace("@locals@", "")
                .replace("@body@", "")
            )
        ),
        "test.p4",
    )
    assert program.field_lists == {1: [("m",)], 2: [("m",), ("inner", "z")]}


# ---- what is not supported says so

FAULTS = {
    "unknown extern": (
        "extern Thing { Thing(); void go(); }",
        "Thing() x;",
        "x.go();",
        "extern Thing is not one of v1model's",
    ),
    "unknown extern function": ("extern void act(in bit<8> x);", "", "act(1);", "extern function act is not one of"),
    "key without a name": (
        "",
        "table t { key = { hdr.h.a + 1 : exact; } actions = { NoAction; } }",
        "t.apply();",
        "@name",
    ),
    "exit through a slice": (
        "",
        "action act(out bit<4> x) { x = 1; exit; }",
        "act(hdr.h.a[3:0]);",
        "I.act may exit",
    ),
    "exact key in an entry": (
        "",
        "table t { key = { hdr.h.a : exact; } actions = { NoAction; } const entries = { _ : NoAction(); } }",
        "t.apply();",
        "exact",
    ),
    "one name for two tables": (
        "",
        'table t { actions = { NoAction; } } @name("t") table u { actions = { NoAction; } }',
        "t.apply(); u.apply();",
        "another table is called I.t",
    ),
    "one name for two actions": (
        "action top() { }",
        '@name(".top") action own() { hdr.h.a = 1; }',
        "own(); top();",
        "another action is called top too",
    ),
    "priority below zero": (
        "",
        "table t { key = { hdr.h.a : ternary; } actions = { NoAction; } priority_delta = 10; "
        "entries = { priority=12: 1 : NoAction(); 2 : NoAction(); 3 : NoAction(); } }",
        "t.apply();",
        "the priority of this entry comes to -8",
    ),
    "register read into a struct": (
        "struct Pair { bit<8> one; bit<8> other; }",
        "register<Pair>(4) r;",
        "Pair both; r.read(both, 0);",
        "a register is read into a value of bits, not into Pair",
    ),
    "mask with holes": (
        "",
        "table t { key = { hdr.h.a : lpm; } actions = { NoAction; } const entries = { 1 &&& 5 : NoAction(); } }",
        "t.apply();",
        "an lpm key",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_with_their_place(name: str) -> None:
    top, local, body, said = FAULTS[name]
    with pytest.raises(P4Error, match=re.escape(said)) as caught:
        lowered(top, local, body)
    assert caught.value.position.line


def test_a_program_needs_v1switch() -> None:
    with pytest.raises(P4Error, match="V1Switch"):
        lower(check(parse_text("#include <core.p4>\n")), "test.p4")


@pytest.mark.parametrize("deep", ["-" * 3_000 + "1", "(" * 3_000 + "1" + ")" * 3_000, "1" + " + hdr.h.a" * 500])
def test_deep_expressions_are_an_error_or_work(deep: str) -> None:
    said = ""
    try:
        said = ingress_text(lowered("", "", f"hdr.h.a = {deep};"))
    except P4Error as error:
        said = str(error)
        located = re.match(r"<text>:\d+:\d+: .+", said)
        said = said if located else ""
    assert said


def test_as_deep_as_the_checker_allows() -> None:
    body = "hdr.h.a = " + "(hdr.h.b ^ " * 100 + "hdr.h.c" + ")" * 100 + ";"
    assert ran("", "", body)[0] == PACKET[2]


# ---- show


def test_show_says_everything(tmp_path: Path) -> None:
    text = ir_text.program(lowered(SUB + ADD, "Sub() sub;", "sub.apply(hdr.h.a); if (add(hdr.h.a) == 1) { exit; }"))
    for part in ("header H", "    a: bit<8>", "counter(4, bytes) I.sub.n", "table I.sub.t size 1024", "ingress: I"):
        assert part in text.split("\n") or part in text
    assert "function add(inout bit<8> x) -> bit<8>" in text
    assert "        exit" in text
    assert "select" not in text
    assert "extract(hdr.s[hdr.s.nextIndex])" in text
