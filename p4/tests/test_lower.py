"""Lowering: what programs become, in which order things happen, and that sharing by reference never shows."""

import ir_rules
import pytest

from p4vm.check.check_program import check
from p4vm.front.parse_program import parse_text
from p4vm.ir import ir_nodes as ir
from p4vm.ir import ir_text
from p4vm.lower.lower_program import lower
from p4vm.python.python_engine import PythonEngine

FRAME = """
#include <core.p4>
#include <v1model.p4>
header H { bit<8> a; bit<8> b; bit<8> c; bit<8> d; }
header E { bit<8> x; bit<8> y; }
struct Headers { H h; E[3] s; }
struct Meta { bit<8> m; bit<32> wide; int<8> i; bool flag; }
@top@
parser P(packet_in packet, out Headers hdr, inout Meta meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.h);
        packet.extract(hdr.s.next);
        packet.extract(hdr.s.next);
        packet.extract(hdr.s.next);
        transition accept;
    }
}
control V(inout Headers hdr, inout Meta meta) { apply {} }
control I(inout Headers hdr, inout Meta meta, inout standard_metadata_t sm) {
    @locals@
    apply {
        sm.egress_spec = 1;
        @body@
    }
}
control G(inout Headers hdr, inout Meta meta, inout standard_metadata_t sm) { apply {} }
control C(inout Headers hdr, inout Meta meta) { apply {} }
control D(packet_out packet, in Headers hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), G(), C(), D()) main;
"""
ADD = "bit<8> add(inout bit<8> x) { x = x + 1; return x; }"
PACKET = bytes([1, 2, 3, 4, 10, 11, 20, 21, 30, 31])
"""h.a … h.d, then s[0].x, s[0].y, …"""


def lowered(top: str = "", local: str = "", body: str = "") -> ir.ProgramIr:
    text = FRAME.replace("@top@", top).replace("@locals@", local).replace("@body@", body)
    return lower(check(parse_text(text)), "test.p4")


def ran(top: str = "", local: str = "", body: str = "", packet: bytes = PACKET) -> bytes:
    """The packet after ingress; it leaves by port 1."""
    program = lowered(top, local, body)
    assert ir_rules.faults(program) == []
    engine = PythonEngine(program)
    ((port, data),) = engine.process(0, packet)
    assert port == 1
    return data


def ingress_text(program: ir.ProgramIr) -> str:
    """The ingress routine without its first line and the choice of the port."""
    lines = ir_text.routine(program.blocks["ingress"]).split("\n")[1:]
    return "\n".join(line.strip() for line in lines if "egress_spec" not in line)


# ---- copies where sharing would show

COPIES = {
    "two parameters, one variable: the last copied out stays": (
        "void f(inout bit<8> x, inout bit<8> y) { x = x + 10; y = y + 20; }",
        "",
        "f(hdr.h.a, hdr.h.a);",
        {0: 21},
    ),
    "out and in of one variable": (
        "void f(out bit<8> x, in bit<8> y) { x = 7; x = x + y; }",
        "",
        "f(hdr.h.a, hdr.h.a);",
        {0: 8},
    ),
    "a header and its field": (
        "void f(inout H x, inout bit<8> y) { x.a = 50; x.b = 60; y = y + 7; }",
        "",
        "f(hdr.h, hdr.h.a);",
        {0: 8, 1: 60},
    ),
    "a field and its header": (
        "void f(inout bit<8> y, inout H x) { x.a = 50; y = y + 7; }",
        "",
        "f(hdr.h.a, hdr.h);",
        {0: 50},
    ),
    "a header passed in stays what it was": (
        "void f(in H x, inout bit<8> y) { y = 9; y = x.a + y; }",
        "",
        "f(hdr.h, hdr.h.a);",
        {0: 10},
    ),
    "an action sees its control's variable, not its argument": (
        "",
        "bit<8> v = 5; action act(inout bit<8> y) { y = y + 1; hdr.h.b = v; }",
        "act(v); hdr.h.a = v;",
        {0: 6, 1: 5},
    ),
    "an action writes what it was passed": (
        "",
        "bit<8> v = 5; action act(inout bit<8> y) { v = 100; y = y + 1; }",
        "act(v); hdr.h.a = v;",
        {0: 6},
    ),
    "an action calls one that writes what it was passed": (
        "",
        "bit<8> v = 5; action low() { v = 100; } action act(inout bit<8> y) { low(); y = y + 1; }",
        "act(v); hdr.h.a = v;",
        {0: 6},
    ),
    "a header passed in to an action that writes it": (
        "",
        "action act(in H x) { hdr.h.a = 90; hdr.h.b = x.a; }",
        "act(hdr.h);",
        {0: 90, 1: 1},
    ),
    "an index is evaluated once, before the call": (
        "void f(inout bit<8> x, inout bit<8> i) { i = i + 1; x = 77; }",
        "",
        "f(hdr.s[hdr.h.a].x, hdr.h.a);",
        {0: 2, 6: 77},
    ),
    "an index that an action changes": (
        "",
        "bit<8> i = 0; action act(inout bit<8> x) { i = 2; x = 77; }",
        "act(hdr.s[i].x);",
        {4: 77},
    ),
    "an element beyond the stack: nothing is written": (
        "void f(inout bit<8> x, out bit<8> y) { y = x; x = 5; }",
        "",
        "f(hdr.s[hdr.h.d].x, hdr.h.a);",
        {0: 0},
    ),
    "slices are written back from left to right": (
        "void f(out bit<4> x, out bit<4> y, inout bit<8> z) { x = 0xA; y = 0xB; z = z + 1; }",
        "",
        "f(hdr.h.a[7:4], hdr.h.b[3:0], hdr.h.c);",
        {0: 0xA1, 1: 0x0B, 2: 4},
    ),
    "two slices of one field": (
        "void f(out bit<4> x, out bit<4> y) { x = 0xA; y = 0xB; }",
        "",
        "f(hdr.h.a[7:4], hdr.h.a[3:0]);",
        {0: 0xAB},
    ),
    "a sub-control with a struct and its part": (
        "control Sub(inout Headers x, inout bit<8> y) { apply { x.h.a = 40; y = y + 1; } }",
        "Sub() sub;",
        "sub.apply(hdr, hdr.h.a);",
        {0: 2},
    ),
    "out starts at zero, whatever the variable held": (
        "void f(out bit<8> x, in bool w) { if (w) { x = 3; } }",
        "",
        "f(hdr.h.a, true); f(hdr.h.b, false);",
        {0: 3, 1: 0},
    ),
    "an argument that nobody wants": (
        "void f(out bit<8> x, out bit<8> y) { x = 3; y = 4; }",
        "",
        "f(_, hdr.h.b);",
        {1: 4},
    ),
    "a result put where its argument is": (
        "H f(in H x) { H r = x; r.a = x.b; r.b = x.a; return r; }",
        "",
        "hdr.h = f(hdr.h);",
        {0: 2, 1: 1},
    ),
    "a header built of its own fields": (
        "",
        "",
        "hdr.h = {hdr.h.d, hdr.h.c, hdr.h.b, hdr.h.a};",
        dict(enumerate([4, 3, 2, 1])),
    ),
    "return copies out what was assigned": (
        "void f(inout bit<8> x) { x = 5; if (x == 5) { return; } x = 6; }",
        "",
        "f(hdr.h.a[7:0]);",
        {0: 5},
    ),
    "bound arguments of a table's action that sees them": (
        "",
        "bit<8> v = 5; action act(inout bit<8> y) { v = 100; y = y + 1; }"
        " table t { actions = { act(v); } default_action = act(v); }",
        "t.apply(); hdr.h.a = v;",
        {0: 6},
    ),
    "bound arguments of a table's action that doesn't": (
        "",
        "action act(inout bit<8> y, in bit<8> z) { y = y + z; }"
        " table t { actions = { act(hdr.h.a, hdr.h.b + 1); } default_action = act(hdr.h.a, hdr.h.b + 1); }",
        "t.apply();",
        {0: 4},
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copy_in_and_copy_out(name: str) -> None:
    top, local, body, changes = COPIES[name]
    assert list(ran(top, local, body)) == [changes.get(place, byte) for place, byte in enumerate(PACKET)]


# ---- order

ORDER = {
    "the left operand is read before the right one's call": ("hdr.h.c = hdr.h.a + add(hdr.h.a);", {0: 2, 2: 3}),
    "calls from left to right": ("hdr.h.c = add(hdr.h.a) * 16 + add(hdr.h.a);", {0: 3, 2: 0x23}),
    "&& skips what it needn't": ("if (hdr.h.a == 9 && add(hdr.h.b) == 3) { hdr.h.c = 0; }", {}),
    "&& runs what it needs": ("if (hdr.h.a == 1 && add(hdr.h.b) == 3) { hdr.h.c = 0; }", {1: 3, 2: 0}),
    "|| skips what it needn't": ("if (hdr.h.a == 1 || add(hdr.h.b) == 3) { hdr.h.c = 0; }", {2: 0}),
    "|| runs what it needs": ("if (hdr.h.a == 9 || add(hdr.h.b) == 9) { hdr.h.c = 0; }", {1: 3}),
    "?: runs one branch": ("hdr.h.c = hdr.h.a == 1 ? add(hdr.h.a) : add(hdr.h.b);", {0: 2, 2: 2}),
    "?: of headers": ("hdr.s[0] = hdr.h.a == 9 ? hdr.s[1] : hdr.s[2];", {4: 30, 5: 31}),
    "a target's index before the value": ("hdr.s[hdr.h.a].x = add(hdr.h.a);", {0: 2, 6: 2}),
    "a compound assignment's target once": ("hdr.s[add(hdr.h.a)].x += 5;", {0: 2, 8: 35}),
    "a compound assignment's value may change its target": ("hdr.h.a += add(hdr.h.a);", {0: 3}),
    "a list's items from left to right": ("hdr.s[0] = {hdr.h.a, add(hdr.h.a)};", {0: 2, 4: 1, 5: 2}),
    "arguments from left to right": ("second(hdr.h.a, add(hdr.h.a), hdr.h.c);", {0: 2, 2: 0x12}),
    "a switch's subject once": ("switch (add(hdr.h.a)) { 2: { hdr.h.b = 9; } 1: { hdr.h.b = 8; } }", {0: 2, 1: 9}),
    "labels share the next body": ("switch (hdr.h.a) { 0: 1: { hdr.h.b = 9; } 2: default: { hdr.h.b = 8; } }", {1: 9}),
    "the default's labels": ("switch (hdr.h.b) { 0: 1: { hdr.h.b = 9; } 2: default: { hdr.h.b = 8; } }", {1: 8}),
    "a loop's condition each turn": ("for (bit<8> i = 0; add(hdr.h.a) < 5; i = i + 1) { hdr.h.b = i; }", {0: 5, 1: 2}),
    "continue goes on with the step": (
        "hdr.h.b = 0; for (bit<8> i = 0; i < 4; i = i + 1) { if (i == 1) { continue; } hdr.h.b = hdr.h.b + 1; }",
        {1: 3},
    ),
    "a range's end is evaluated once": ("for (bit<8> i in 1 .. hdr.h.d) { hdr.h.d = 9; hdr.h.b = i; }", {1: 4, 3: 9}),
    "a range up to the largest value": ("hdr.h.b = 0; for (bit<8> i in 254 .. 255) { hdr.h.b = hdr.h.b + 1; }", {1: 2}),
    "an empty range": ("for (bit<8> i in hdr.h.b .. hdr.h.a) { hdr.h.b = 0; }", {}),
    "a list, and break": ("for (bit<8> i in {7, hdr.h.c, 9}) { hdr.h.b = i; if (i == 3) { break; } }", {1: 3}),
    "a header stack": ("hdr.h.b = 0; for (E e in hdr.s) { hdr.h.b = hdr.h.b + e.x; }", {1: 60}),
    "a slice at a variable place": ("hdr.h.c = (bit<8>)hdr.s[0].x[hdr.h.a +: 3];", {2: 5}),
    "a slice written at a variable place": ("hdr.h.c[hdr.h.b +: 2] = 3;", {2: 0x0F}),
    "the rest of a list is zero": ("hdr.h = {9, ...};", {0: 9, 1: 0, 2: 0, 3: 0}),
    "fields by name, in any order": ("hdr.s[0] = {y = 1, x = 2};", {4: 2, 5: 1}),
}
SECOND = "void second(in bit<8> x, in bit<8> y, out bit<8> z) { z = x * 16 + y; }"


@pytest.mark.parametrize("name", ORDER)
def test_order_of_evaluation(name: str) -> None:
    body, changes = ORDER[name]
    found = ran(ADD + SECOND, "", body)
    assert list(found) == [changes.get(place, byte) for place, byte in enumerate(PACKET)]


# ---- constructs that lowering gives their meaning

ONE = "action one() { hdr.h.c = 77; }"
MEANING = {
    "calls in a table's key": (
        "bit<8> two(inout bit<8> x) { x = x + 1; return 2; }",
        ONE + 'table t { key = { two(hdr.h.a) : exact @name("k"); hdr.h.a : exact; }'
        " actions = { one; NoAction; } const entries = { (2, 2) : one(); } }",
        "t.apply();",
        {0: 2, 2: 77},
    ),
    "generics that call generics": (
        "struct W<T> { T v; } W<T> wrap<T>(in T x) { W<T> w; w.v = x; return w; }"
        "T un<T>(in T x) { W<T> w = wrap(x); return w.v; }",
        "",
        "hdr.h.a = un(hdr.h.b); W<bit<16>> w = wrap(hdr.h.c ++ hdr.h.d); hdr.h.b = w.v[7:0];",
        {0: 2, 1: 4},
    ),
    "names within names": (
        "",
        "bit<8> x = 1; action a(inout bit<8> y) { bit<8> x = 50; y = x; }",
        "{ bit<8> x = 5; a(x); hdr.h.a = x; { bit<8> x = 6; hdr.h.b = x; } } hdr.h.c = x;",
        {0: 50, 1: 6, 2: 1},
    ),
    "a variable is new in each turn": (
        "",
        "",
        "for (bit<8> i = 0; i < 3; i = i + 1) { bit<8> z; if (i == 1) { z = 5; } hdr.h.a = z; }",
        {0: 0},
    ),
    "fields of results and of lists": (
        "struct S { bit<8> a; bit<8> b; } S mk(in bit<8> x) { return {x, x + 1}; }",
        "",
        "hdr.h.a = mk(5).b; hdr.s[0] = {mk(1).a, mk(2).b}; tuple<bit<8>, bit<8>> u = {7, 8}; hdr.h.b = u[1];",
        {0: 6, 1: 8, 4: 1, 5: 3},
    ),
    "comparison with lists and {#}": (
        "",
        "",
        "if (hdr.h == {1, 2, 3, 4}) { hdr.h.a = 9; } hdr.s[1] = (E){#}; if (hdr.s[1] == (E){#}) { hdr.h.b = 9; }"
        " hdr.s[1] = {5, 6};",
        {0: 9, 1: 9, 6: 5, 7: 6},
    ),
    "members of a union": (
        "header_union U { H h; E e; } struct X { U u; }",
        "",
        "X x; x.u.e.setValid(); x.u.h = hdr.h; if (x.u.h.isValid() && !x.u.e.isValid()) { hdr.h.a = x.u.h.b; }"
        " x.u.h = (H){#}; if (!x.u.isValid()) { hdr.h.b = 9; }",
        {0: 2, 1: 9},
    ),
    "a union's member passed on": (
        "header_union U { H h; E e; } struct X { U u; } void f(inout H h) { h.setValid(); h.a = 8; }",
        "",
        "X x; x.u.e.setValid(); f(x.u.h); if (!x.u.e.isValid()) { hdr.h.a = x.u.h.a; }",
        {0: 8},
    ),
    "controls as constructors' arguments": (
        "control T(inout bit<8> x); control Inc(inout bit<8> x)(bit<8> by) { apply { x = x + by; } }"
        "control Two(inout bit<8> x)(T i) { apply { i.apply(x); i.apply(x); } }",
        "Two(Inc(5)) t;",
        "t.apply(hdr.h.a);",
        {0: 11},
    ),
    "externs as arguments of apply": (
        "control S(inout bit<8> x, register<bit<8>> r) { apply { r.write(1, x); r.read(x, 0); } }",
        "register<bit<8>>(2) q; S() s;",
        "s.apply(hdr.h.a, q); q.read(hdr.s[hdr.h.c - 1].x, 1);",
        {0: 0, 8: 1},
    ),
    "break and continue within switch": (
        "",
        "",
        "hdr.h.a = 0; for (bit<8> i = 0; i < 3; i += 1) { for (bit<8> j = 0; j < 5; j += 1)"
        " { switch (j) { 3: { break; } 1: { continue; } } hdr.h.a += 1; } }",
        {0: 6},
    ),
    "exit ends what is around": (
        "control S(inout bit<8> x) { apply { x = 9; exit; } }",
        "S() s;",
        "s.apply(hdr.h.a); hdr.h.b = 9;",
        {0: 9},
    ),
    "parts of a table's entry that are bound": (
        "",
        "action a(out bit<4> r, bit<4> v) { r = v; } table t { key = { hdr.h.a : exact; }"
        " actions = { a(hdr.h.b[7:4]); } const entries = { 1 : a(hdr.h.b[7:4], 9); } }",
        "t.apply();",
        {1: 0x92},
    ),
    "saturation, signs, enums": (
        "enum bit<4> K { A = 3, B = 7 }",
        "",
        "hdr.h.a = hdr.h.a |-| 5; hdr.h.b = hdr.h.b |+| 254; meta.i = -1; meta.i = meta.i >> 1;"
        " hdr.h.c = (bit<8>)meta.i; K k = K.B; hdr.h.d = (bit<8>)(bit<4>)k;",
        {0: 0, 1: 255, 2: 255, 3: 7},
    ),
}


@pytest.mark.parametrize("name", MEANING)
def test_meaning(name: str) -> None:
    top, local, body, changes = MEANING[name]
    assert list(ran(top, local, body)) == [changes.get(place, byte) for place, byte in enumerate(PACKET)]


def test_log_msg_takes_its_list_apart() -> None:
    program = lowered("", "", 'log_msg("{} {} {}", {hdr.h.a, 3w5, hdr.s[0]});')
    assert ingress_text(program) == 'log_msg("{} {} {}", hdr.h.a, 3w5, hdr.s[32w0].x, hdr.s[32w0].y)'


# ---- no copies where nothing would show


def test_whole_structs_go_by_reference() -> None:
    program = lowered(
        "control Sub(inout Headers x, in Meta m, out bit<8> y) { apply { x.h.a = m.m; y = 1; } }",
        "Sub() sub;",
        "sub.apply(hdr, meta, hdr.h.b);".replace("hdr.h.b", "meta_copy").replace(
            "sub.apply", "bit<8> meta_copy; sub.apply"
        ),
    )
    assert not program.blocks["ingress"].locals[1:]
    assert ingress_text(program) == "bit<8> meta_copy\nI.sub(hdr, meta, meta_copy)"


def test_results_need_no_detour() -> None:
    program = lowered(ADD, "", "hdr.h.b = add(hdr.h.a); bit<8> v = add(hdr.h.c); hdr.h.d = v;")
    assert ingress_text(program) == "bit<8> v\nhdr.h.b = add(hdr.h.a)\nv = add(hdr.h.c)\nhdr.h.d = v"


def test_variables_are_reset_where_it_shows() -> None:
    local = "register<bit<8>>(4) r;"
    body = "bit<8> u; bit<8> v; bit<8> w; r.read(u, 0); v = u; if (u == 1) { w = v; } hdr.h.a = w;"
    assert ingress_text(lowered("", local, body)).split("\n") == [
        "bit<8> u",
        "bit<8> v",
        "bit<8> w",
        "reset w",
        "u = I.r[32w0]",
        "v = u",
        "if (u == 8w1)",
        "w = v",
        "hdr.h.a = w",
    ]


def test_constants_decide_now() -> None:
    top = "const bool FAST = false; const bit<8> STEP = 3; enum bit<8> Kind { small = 1, large = 2 }"
    body = """
        if (FAST && add(hdr.h.a) == 1) { hdr.h.a = 1; } else { hdr.h.a = hdr.h.a + (STEP << 1) * 2; }
        if (FAST) { hdr.h.b = 1; }
        hdr.h.c = Kind.large;
        hdr.h.d = (bit<8>)(16w0xABCD[11:4] ++ 4w1);
        switch (STEP) { 1: { hdr.h.a = 0; } 3: { hdr.s[0].x = 1; } }
        meta.wide = (bit<32>)H.maxSizeInBytes;
    """.replace("H.maxSizeInBytes", "hdr.h.maxSizeInBytes()")
    assert ingress_text(lowered(ADD + top, "", body)).split("\n") == [
        "hdr.h.a = (hdr.h.a + 8w12)",
        "hdr.h.c = 8w2",
        "hdr.h.d = 8w193",
        "hdr.s[32w0].x = 8w1",
        "meta.wide = 32w4",
    ]


def test_generic_functions_once_for_each_type() -> None:
    top = "T first<T>(in T x, in T y) { return x; } struct Pair<A, B> { A one; B two; }"
    body = """
        hdr.h.a = first(hdr.h.b, 8w1); hdr.h.b = first(hdr.h.c, 8w2); meta.wide = first<bit<32>>(meta.wide, 1);
        Pair<bit<8>, bool> p = {1, true}; Pair<bit<8>, bool> q = first(p, p); hdr.h.c = q.one;
    """
    program = lowered(top, "", body)
    names = [routine.name for routine in program.routines if routine.kind == "function"]
    assert names == ["first", "first_1", "first_2"]
    assert [record.name for record in program.records if record.name.startswith("Pair")] == ["Pair"]


def test_callees_come_before_callers_and_unused_ones_not_at_all() -> None:
    top = "void low(inout bit<8> x) { x = 1; } void high(inout bit<8> x) { low(x); } void never() {}"
    names = [routine.name for routine in lowered(top, "", "high(hdr.h.a);").routines]
    assert names.index("low") < names.index("high") < names.index("I")
    assert "never" not in names
