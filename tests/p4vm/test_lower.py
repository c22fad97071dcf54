"""Lowering: what programs become, in which order things happen, and that sharing by reference never shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p4vm import ir_rules
from switchagg.p4vm import ir, show
from switchagg.p4vm.check import check
from switchagg.p4vm.lower import lower
from switchagg.p4vm.parse import parse_text
from switchagg.p4vm.python_engine import PythonEngine
from switchagg.p4vm.source import P4Error

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


def lowered(top: str = "", local: str = "", body: str = "") -> ir.Program:
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


def ingress_text(program: ir.Program) -> str:
    """The ingress routine without its first line and the choice of the port."""
    lines = show.routine(program.ingress).split("\n")[1:]
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
    assert not program.ingress.locals[1:]
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
        "I.r.read(u, 32w0)",
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


def test_constructor_arguments_make_routines_of_their_own() -> None:
    top = """
        control Sub(inout bit<8> x)(bit<8> step, register<bit<8>> cells) {
            apply { if (step == 1) { x = x + step; } else { cells.write(0, step); } }
        }
    """
    program = lowered(
        top, "register<bit<8>>(2) r; Sub(1, r) one; Sub(2, r) two;", "one.apply(hdr.h.a); two.apply(hdr.h.b);"
    )
    texts = {routine.name: show.routine(routine).split("\n")[1:] for routine in program.routines}
    assert texts["I.one"] == ["    x = (x + 8w1)"]
    assert texts["I.two"] == ["    I.r.write(32w0, 8w2)"]


def test_switch_on_the_action_that_ran() -> None:
    local = "action a() {} action b() {} action c() {} table t { actions = { a; b; c; } default_action = b(); }"
    body = "switch (t.apply().action_run) { a: { hdr.h.a = 7; } c: b: { hdr.h.a = 8; } default: { hdr.h.a = 9; } }"
    assert ran("", local, body)[0] == 8
    assert "case 2, 1" in ingress_text(lowered("", local, body))


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
    text = show.program(lowered(SUB + ADD, "Sub() sub;", "sub.apply(hdr.h.a); if (add(hdr.h.a) == 1) { exit; }"))
    for part in ("header H", "    a: bit<8>", "counter(4, bytes) I.sub.n", "table I.sub.t size 1024", "ingress: I"):
        assert part in text.split("\n") or part in text
    assert "function add(inout bit<8> x) -> bit<8>" in text
    assert "        exit" in text
    assert "select" not in text
    assert "extract(hdr.s.next)" in text
