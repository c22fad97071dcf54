"""The type checker: notes on small programs, errors word for word, and programs changed at random."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from p4vm.check.check_program import check
from p4vm.check.scope import NESTING_MAX
from p4vm.front.parse_program import parse_text
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.tree import types
from p4vm.tree.checked import Checked

HERE = Path(__file__).parent
LIBRARY = (
    "error { NoError, Bad } match_kind { exact, lpm, ternary, range } "
    "extern packet_in { void extract<T>(out T h); void extract<T>(out T h, in bit<32> n); T lookahead<T>(); "
    "void advance(in bit<32> n); } "
    "extern void verify(in bool c, in error e); extern bool static_assert(bool c, string m); action NoAction() { } "
    "header H { bit<8> a; bit<8> b; } header V { varbit<32> v; } header_union U { H h; V v; } "
    "struct S { H h; bit<8> x; bit<16> y; } enum E { A, B } enum bit<8> Z { P = 1, Q = 2 } type bit<9> Port; "
    "const bit<8> c8 = 1; extern Reg<T> { Reg(bit<32> n); void read(out T v, in bit<32> i); } "
    "extern void log<T>(string s, in T v); bit<8> f8(in bit<8> x) { return x; } void g8(out bit<8> x) { } "
    "void k8(bit<8> x) { } void v8() { } parser Q(inout S s) { state start { transition accept; } } "
    "control Sub(inout bit<8> x) { apply { } } control C_t(inout S s); package Top(C_t c);\n"
)
"""One line, so that a fragment begins in the second."""
CONTROL = (
    "control C(inout S s) { Reg<bit<8>>(4) r; Sub() sub; H[2] hs; U u; int<8> i8; action act(bit<8> n) { } "
    "table tab { actions = { act; } }"
)
PARSER = "parser R(packet_in p, inout S s) { H[2] hs; V v; Q() sub;"
PLACES = {
    "top": LIBRARY + "%s",
    "apply": LIBRARY + CONTROL + " apply {\n%s\n} }",
    "control": LIBRARY + CONTROL + "\n%s\napply { } }",
    "parser": LIBRARY + PARSER + "\n%s }",
}

BIT8, BIT16, BIT32 = types.BitsType(8), types.BitsType(16), types.BitsType(32)


def checked(source: str, place: str = "top") -> Checked:
    return check(parse_text(PLACES[place].replace("%s", source), "p.p4"))


def children(node: tree.Node) -> Iterator[tuple[tree.Node, str, int | None, tree.Node]]:
    """Slots that hold a node: owner, attribute, index in a list, what it holds."""
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, tree.Node):
            yield node, part.name, None, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                items = item if isinstance(item, tuple) else (item,)
                yield from ((node, part.name, index, one) for one in items if isinstance(one, tree.Node))


def walk(node: tree.Node) -> Iterator[tuple[tree.Node, str, int | None, tree.Node]]:
    stack = [node]
    while stack:
        for slot in children(stack.pop()):
            yield slot
            stack.append(slot[3])


def last(found: Checked) -> Any:
    return found.program.declarations[-1]


def every(found: Checked, kind: type, whole: bool = False) -> list[Any]:
    """Nodes of a class in the last declaration (or the whole program), in order of their places."""
    start = found.program if whole else last(found)
    nodes = {id(slot[3]): slot[3] for slot in walk(start) if isinstance(slot[3], kind)}.values()
    return sorted(nodes, key=lambda n: (n.position.line, n.position.column))


def values(found: Checked) -> list[Any]:
    return [
        found.constants.get(c.value) for c in found.program.declarations if isinstance(c, tree.ConstantDeclaration)
    ][1:]


# ---- constants


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("const int x = 2 + 3 * 4;", 14),
        ("const int x = 17 / 5 * 10 + 17 % 5;", 32),
        ("const int x = -7 >> 1;", -4),
        ("const bit<8> x = 8w250 + 10;", 4),
        ("const bit<8> x = 8w250 |+| 10;", 255),
        ("const bit<8> x = 8w3 |-| 10;", 0),
        ("const int<8> x = 8s100 |+| 100;", 127),
        ("const int<8> x = -8s100 |-| 100;", -128),
        ("const int<8> x = 8s127 + 1;", -128),
        ("const bit<8> x = ~8w1;", 254),
        ("const bit<8> x = -8w1;", 255),
        ("const bit<8> x = 300;", 44),
        ("const bit<8> x = -1;", 255),
        ("const bit<8> x = 8w1 << 9;", 0),
        ("const bit<8> x = 8w1 << 7 >> 3;", 16),
        ("const bit<12> x = 4w0xA ++ 8w0xBC;", 0xABC),
        ("const int<12> x = 4s1 ++ -8s1;", 0x1FF),
        ("const bit<4> x = 16w0xABCD[11:8];", 0xB),
        ("const bit<4> x = 16w0xABCD[8 +: 4];", 0xB),
        ("const bit<8> x = (bit<8>)(int<8>)-1;", 255),
        ("const int<16> x = (int<16>)(-8s1);", -1),
        ("const bit<8> x = Z.Q;", 2),
        ("const bit<8> x = Z.P + 1;", 2),
        ("const Z x = (Z)2;", "Q"),
        ("const Z x = (Z)7;", None),
        ("const bool x = Z.P == 1;", True),
        ("const E x = E.B;", "B"),
        ("const error x = error.Bad;", "Bad"),
        ("const bool x = E.A == E.B || 3 < 2;", False),
        ("const bool x = (bool)1;", True),
        ("const Port x = (Port)9w5;", 5),
        ("const Port x = 513;", 1),
        ("const tuple<bit<8>, bool> x = {1, true};", (1, True)),
        ("const S x = {{1, 2}, 3, 4};", ((1, 2), 3, 4)),
        ("const S x = {y = 4, x = 3, h = {b = 2, a = 1}};", ((1, 2), 3, 4)),
        ("const H x = {a = 1, ...};", (1, 0)),
        ("const bit<16> x = ...;", 0),
        ('const string x = "a" ++ "b";', "ab"),
        ('const bool x = static_assert(1 < 2, "");', True),
        ("const S s = {{1, 2}, 3, 4};\nconst bit<8> x = s.h.b;", 2),
        ("const tuple<bit<8>, bit<8>> t = {1, 2};\nconst bit<8> x = t[1];", 2),
        ("const bool x = (S){{1, 2}, 3, 4} == {{1, 2}, 3, 4};", True),
        ("const bit<8> x = true ? 8w1 : 2;", 1),
    ],
)
def test_constants(source: str, value: object) -> None:
    assert values(checked(source))[-1] == value


def test_sizes_of_types_are_constants() -> None:
    found = checked(
        "bit<32> q = (bit<32>)s.h.minSizeInBits() + (bit<32>)u.maxSizeInBytes();"
        "bit<32> w = (bit<32>)hs.maxSizeInBits() + (bit<32>)u.minSizeInBits();",
        "apply",
    )
    calls = [node for node in every(found, tree.CallExpression) if found.calls[node].kind == "builtin"]
    assert [found.constants[node] for node in calls] == [16, 4, 32, 0]


# ---- types, conversions


def test_numbers_take_the_other_operands_type_and_are_noted_as_converted() -> None:
    found = checked("s.x = s.x + 1;", "apply")
    addition, number = every(found, tree.BinaryExpression)[-1], every(found, tree.Number)[-1]
    assert found.type_of[addition] == BIT8
    assert (found.type_of[number], found.converted[number], found.constants[number]) == (types.INTEGER, BIT8, 1)
    assert addition not in found.converted
    assert addition not in found.constants


def test_an_enum_with_a_base_becomes_its_base_where_bits_are_expected() -> None:
    found = checked("s.x = Z.Q;", "apply")
    node = every(found, tree.MemberExpression)[-1]
    assert (str(found.type_of[node]), found.converted[node], found.constants[node]) == ("Z", BIT8, 2)
    assert isinstance(found.declared[node], tree.EnumDeclaration)


def test_lists_and_struct_expressions_become_what_they_fill() -> None:
    found = checked("s = {h = {1, 2}, y = 3, x = 4};", "apply")
    whole, inner = every(found, tree.StructExpression)[-1], every(found, tree.ListExpression)[-1]
    assert (str(found.converted[whole]), str(found.converted[inner])) == ("S", "H")
    assert found.type_of[inner] == types.TupleType((types.INTEGER, types.INTEGER))
    assert found.constants[whole] == ((1, 2), 4, 3)
    typed = checked("s.h = (H){1, s.x};", "apply")
    assert str(typed.type_of[every(typed, tree.CastExpression)[-1]]) == "H"
    stack = checked("hs = {{1, 2}, {#}};", "apply")
    assert str(stack.converted[every(stack, tree.ListExpression)[0]]) == "H[2]"
    assert str(stack.type_of[every(stack, tree.InvalidHeader)[0]]) == "H"


def test_branches_of_a_conditional_take_one_type() -> None:
    found = checked("s.x = s.y == 0 ? 1 : s.x;", "apply")
    chosen = every(found, tree.Conditional)[-1]
    assert (found.type_of[chosen], found.converted[chosen.yes]) == (BIT8, BIT8)
    lists = checked("s.h = s.y == 0 ? {1, 2} : {#};", "apply")
    chosen = every(lists, tree.Conditional)[-1]
    assert {str(lists.type_of[chosen]), str(lists.converted[chosen.yes])} == {"H"}
    assert chosen not in lists.converted


def test_types_as_written_are_noted() -> None:
    found = checked("typedef bit<8> Byte;\nstruct T { Byte b; H[3] hs; tuple<bool, Z> t; }")
    kinds = {field.name: str(found.type_of[field]) for field in last(found).fields}
    assert kinds == {"b": "bit<8>", "hs": "H[3]", "t": "tuple<bool, Z>"}
    name = last(found).fields[0].type
    assert isinstance(found.declared[name], tree.TypeDef)
    assert found.type_of[name] == BIT8


@pytest.mark.parametrize(
    ("source", "warning"),
    [
        ("const bit<8> x = 256;", "p.p4:2:18: warning: 256 does not fit bit<8>; it needs bit<9>; 0 is used"),
        ("const int<8> x = 128;", "p.p4:2:18: warning: 128 does not fit int<8>; it needs int<9>; -128 is used"),
        ("const bit<8> x = 8w1 << 8;", "p.p4:2:22: warning: bit<8> is shifted by 8 bits, all that it has"),
    ],
)
def test_warns(source: str, warning: str) -> None:
    assert checked(source).warnings == [warning]


def test_an_unknown_property_of_a_table_is_a_warning() -> None:
    found = checked("table t { actions = { NoAction; } sise = 4; }", "control")
    assert found.warnings == [
        "p.p4:3:35: warning: table 't' has a property 'sise', which means nothing here; did you mean 'size'?"
    ]


# ---- names


def test_names_mean_the_nearest_declaration() -> None:
    found = checked("const bit<16> c8 = 2; s.y = c8; { const bit<16> c8 = 3; s.y = c8; } s.x = .c8;", "apply")
    assigned = [node.value for node in every(found, tree.AssignmentStatement)]
    assert [found.constants[value] for value in assigned] == [2, 3, 1]


def test_the_left_of_a_dot_is_a_type_only_where_nothing_hides_it() -> None:
    found = checked("H E = s.h; s.x = E.a; s.h.setValid(); { Z Z = Z.Q; if (Z == .Z.P) { } }", "apply")
    bases = [type(node.base).__name__ for node in every(found, tree.MemberExpression) if node.name in ("a", "Q", "P")]
    assert bases == ["Name", "TypeExpression", "TypeExpression"]


def test_later_declarations_are_said_to_be_so() -> None:
    with pytest.raises(P4Error, match=r"'late' is used before its declaration in line 4; move the declaration up"):
        checked("action a() { late.apply(); }\ntable late { actions = { NoAction; } }", "control")


# ---- calls


def test_calls_say_what_they_call() -> None:
    found = checked(
        "f8(x = 1); g8(_); v8(); act(1); sub.apply(s.x); tab.apply(); r.read(s.x, 0); s.h.setValid(); "
        'hs.push_front(1); log("", s.h); Sub.apply(s.x);',
        "apply",
    )
    notes = [found.calls[node] for node in every(found, tree.CallExpression) if node in found.calls]
    assert [(note.kind, note.name) for note in notes] == [
        ("function", "f8"),
        ("function", "g8"),
        ("function", "v8"),
        ("action", "act"),
        ("apply", "apply"),
        ("apply", "apply"),
        ("method", "read"),
        ("builtin", "setValid"),
        ("builtin", "push_front"),
        ("extern", "log"),
        ("apply", "apply"),
    ]
    assert [type(note.declaration).__name__ for note in notes[:7]] == [
        *["Function"] * 3,
        "Action",
        "ControlDeclaration",
        "TableDeclaration",
        "FunctionPrototype",
    ]
    assert notes[1].arguments == [None]
    assert str(notes[9].type_arguments[0]) == "H"
    assert notes[6].parameters[0].type == BIT8
    assert isinstance(notes[10].receiver, tree.TypeExpression)


def test_overloads_differ_in_number_and_names_of_parameters() -> None:
    source = "void f(in bit<8> a) { }\nvoid f(in bit<8> b) { }\nvoid f(in bit<8> a, in bit<8> b = 2) { }\n"
    found = checked(source + "void g() { f(a = 1); f(b = 1); f(1, 2); f(b = 1, a = 2); }")
    lines = [found.calls[node].declaration.position.line for node in every(found, tree.CallExpression)]  # type: ignore[union-attr]
    assert lines == [2, 3, 4, 4]
    with pytest.raises(P4Error, match=r"call of 'f' is ambiguous between f\(a\), f\(b\), f\(a, b\); name the arg"):
        checked(source + "void g() { f(1); }")


def test_type_arguments_are_found_from_arguments_and_results() -> None:
    source = "T id<T>(in T x) { T y = x; return y; }\nvoid two<T>(in T a, in T b) { }\n"
    found = checked(source + "void g(in bit<8> x) { bit<8> y = id(x); two(1, x); two<bit<16>>(1, 2); }")
    kinds = [tuple(map(str, found.calls[node].type_arguments)) for node in every(found, tree.CallExpression)]
    assert kinds == [("bit<8>",), ("bit<8>",), ("bit<16>",)]
    inner = next(n for n in every(found, tree.VariableDeclaration, whole=True) if n.name == "y")
    assert found.type_of[inner] == types.TypeVariable("T", "id")
    looked = checked("state start { s.y = p.lookahead(); transition accept; }", "parser")
    assert looked.calls[every(looked, tree.CallExpression)[-1]].type_arguments == (BIT16,)


def test_generic_structures_are_made_once_for_each_argument() -> None:
    source = "struct G<T> { T x; bit<8> y; }\nstruct D { G<bit<16>> a; G<bit<16>> b; G<G<bool>> c; }\n"
    found = checked(source + "const G<bit<16>> one = {1, 2};\nconst D d = {one, (G<bit<16>>){x = 3, y = 4}, ...};")
    kind = found.type_of[found.program.declarations[-3]]
    assert isinstance(kind, types.StructureType)
    assert kind.fields[0][1] is kind.fields[1][1]
    assert str(kind.fields[2][1]) == "G<G<bool>>"
    assert values(found)[-1] == ((1, 2), (3, 4), ((False, 0), 0))


def test_packages_take_parsers_and_controls_that_fit() -> None:
    source = "control I<A>(inout A a); package P<A, B>(I<A> i, I<B> j);\ncontrol X(inout S s) { apply { } }\n"
    generic = "control Y<A>(inout A a) { apply { A b = a; } }\n"
    found = checked(source + generic + "P<_, H>(X(), Y()) main;")
    assert found.main is last(found)
    note = found.instances[last(found)]
    assert (note.kind, [str(a) for a in note.type_arguments]) == ("constructor", ["S", "H"])
    inner = [found.calls[node] for node in every(found, tree.CallExpression)]
    assert [[str(a) for a in n.type_arguments] for n in inner] == [[], ["H"]]


def test_constructor_parameters_are_known_but_have_no_value() -> None:
    found = checked("control X(inout S s)(bit<32> n) { Reg<bit<8>>(n + 1) r; apply { k8((bit<8>)n); } }")
    assert not any(node in found.constants for node in every(found, tree.Name) if node.name == "n")
    note = found.instances[every(found, tree.Instance)[0]]
    assert note.parameters[0].type == BIT32
    with pytest.raises(P4Error, match="must be known at compile time, whoever uses"):
        checked("control X(inout S s)(bit<32> n) { apply { bit<n> x; } }")


def test_abstract_methods_are_given_in_an_instances_body() -> None:
    source = "extern A<T> { A(); abstract void run(inout T v, @optional out T w); T get(); }\n"
    body = "A<bit<8>>() a = { void run(inout bit<8> v) { v = 1; } };\n"
    found = checked(source + body)
    assert found.type_of[last(found)] == types.ExternType("A", (BIT8,))
    with pytest.raises(P4Error, match="instance 'a' must give the abstract method 'run' of A<bit<8>>"):
        checked(source + "A<bit<8>>() a;")
    with pytest.raises(P4Error, match="method 'run' differs from its declaration"):
        checked(source + body.replace("inout bit<8> v", "inout bit<16> v"))


# ---- tables, switches, parsers


def test_actions_of_tables_note_which_arguments_are_given() -> None:
    found = checked(
        "action b(in bit<8> x, bit<8> y) { }\n"
        "table t { key = { s.x: exact; s.y: ternary; } actions = { b(s.x); } default_action = b(s.x, 2);\n"
        "const entries = { (1, _): b(s.x, 3); (2, 1 &&& 3): b(4); } }",
        "control",
    )
    table = every(found, tree.TableDeclaration)[-1]
    listed = found.bound[table.actions[0]]
    assert [type(a).__name__ for a in listed.arguments] == ["MemberExpression", "NoneType"]
    refs = [table.default_action, *(entry.action for entry in table.entries)]
    assert [found.constants[found.bound[ref].arguments[1]] for ref in refs] == [2, 3, 4]
    assert {found.bound[ref].arguments[0] for ref in refs} == {listed.arguments[0]}
    assert found.converted[found.bound[refs[0]].arguments[1]] == BIT8
    assert found.type_of[table] == types.TableType("t", ("b",))
    assert isinstance(found.declared[table.actions[0]], tree.Action)
    assert [str(found.type_of[key]) for key in table.entries[1].keys] == ["int", "set<bit<16>>"]


def test_switches_on_a_table_have_its_actions_as_labels() -> None:
    found = checked("switch (tab.apply().action_run) { act: { } default: { } }", "apply")
    switch = every(found, tree.SwitchStatement)[-1]
    assert found.type_of[switch.subject] == types.TableType("tab", ("act",))
    assert isinstance(found.declared[switch.cases[0].label], tree.Action)
    result = found.type_of[switch.subject.base]
    assert isinstance(result, types.ApplyResultType)


def test_select_takes_masks_ranges_lists_and_value_sets() -> None:
    found = checked(
        "value_set<bit<8>>(4) vs; value_set<tuple<bit<8>, bit<16>>>(4) pair;\n"
        "state start { transition select(s.x, s.y) { (1 &&& 3, 1 .. 5): accept; (vs, _): start; pair: start; "
        "_: reject; } }",
        "parser",
    )
    kinds = [str(found.type_of[key]) for case in every(found, tree.SelectCase) for key in case.keys]
    pair = "set<tuple<bit<8>, bit<16>>>"
    assert kinds == ["set<bit<8>>", "set<bit<16>>", "set<bit<8>>", "set<bit<16>>", pair, pair]


def test_a_select_without_default_ends_a_parser() -> None:
    checked("state start { transition select(s.x) { 1: more; } } state more { transition start; }", "parser")


def test_loops_declare_their_variables() -> None:
    found = checked(
        "for (bit<8> i = 0, bit<8> j = 1; i < 4; i = i + 1) { if (i == 2) { continue; } s.x = s.x + j; }\n"
        "for (bit<8> i in 1 .. 5) { s.x = s.x + i; break; }\nfor (H h in hs) { s.h = h; }\n"
        "for (bit<8> i in (list<bit<8>>){1, 2}) { s.x = i; }",
        "apply",
    )
    loops = every(found, tree.ForInStatement)
    assert [str(found.type_of[loop]) for loop in loops] == ["bit<8>", "H", "bit<8>"]
    used = [n for n in every(found, tree.Name) if n.name == "h"]
    assert found.declared[used[-1]] is loops[1]


# ---- errors


def wrong_programs() -> list[tuple[str, str, str]]:
    """Cases of wrong_programs.txt: a place in brackets, the fragment that stands there, ! and the error."""
    cases = []
    for block in (HERE / "wrong_programs.txt").read_text(encoding="utf-8").split("\n\n"):
        first, *source, error = block.strip().split("\n")
        cases.append((first.strip("[]"), "\n".join(source), error.removeprefix("! ")))
    return cases


@pytest.mark.parametrize(("place", "source", "error"), wrong_programs())
def test_refuses(place: str, source: str, error: str) -> None:
    with pytest.raises(P4Error) as caught:
        checked(source, place)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    "source",
    [
        "const int x = " + "-" * 4000 + "1;",
        "void f() { " + "{" * 400 + "}" * 400 + " }",
        "struct Generic_with_a_name_of_some_length<T> { T x; }\ntypedef bit<8> t0;\n"
        + "".join(f"typedef Generic_with_a_name_of_some_length<t{i}> t{i + 1};\n" for i in range(60)),
        "typedef bit<8> t0;\n" + "".join(f"typedef tuple<t{i}, t{i}> t{i + 1};\n" for i in range(60)),
        "struct s0 { bit<8> x; }\n" + "".join(f"struct s{i + 1} {{ s{i} x; s{i} y; }}\n" for i in range(60)),
        "const int x0 = 3;\n" + "".join(f"const int x{i + 1} = x{i} * x{i};\n" for i in range(60)),
        "const bit<60000> x = 0;\nconst bit<60000> y = (x ++ x)[59999:0];",
    ],
)
def test_programs_that_grow_without_end_are_refused(source: str) -> None:
    with pytest.raises(P4Error):
        checked(source)


def test_trees_nested_deeper_than_any_text_are_refused() -> None:
    node: tree.ExpressionNode = tree.Number(1, 8)
    for _ in range(NESTING_MAX + 1):
        node = tree.UnaryExpression("-", node)
    program = parse_text("const bit<8> x = 1;")
    program.declarations[0].value = node  # type: ignore[union-attr]
    with pytest.raises(P4Error, match=f"nested more than {NESTING_MAX} levels"):
        check(program)


# ---- whole programs, and these changed at random


WHOLE = """
struct G<T> { T x; bit<8> y; }
T id<T>(in T x) { return x; }
control I(inout S s, packet_in p)(bit<32> n) {
    Reg<bit<8>>(n) r; Sub() sub; H[2] hs; U u; G<bit<8>> g = {1, 2}; const int k = 3 * 4;
    action act(in bit<8> x, bit<8> y) { s.x = x |+| y; if (s.y[3:0] == 4w2) { s.x = (bit<8>)s.y; return; } exit; }
    table t { key = { s.x: ternary; s.h.a: exact; } actions = { act(s.x); NoAction; } size = 4;
        default_action = act(s.x, 2); const entries = { (1 &&& 3, 2): act(s.x, 3); (_, 4): NoAction(); } }
    apply {
        switch (t.apply().action_run) { act: { s.x = id(s.x); } default: { } }
        if (t.apply().hit && s.h.isValid() || s.x < 4) { s.h = {1, g.y}; } else { s.h.setInvalid(); }
        for (bit<8> i in 1 .. 5) { s.x = s.x + (i << 2); if (i == 3) { break; } }
        bit<24> all = s.x ++ s.y; hs[1] = s.h; hs.push_front(1); r.read(s.x, (bit<32>)all & k);
        s = {h = {a = 1, ...}, x = Z.P, y = s.x == 0 ? 16w1 : 2}; log("text", {s.x, all[7:0]}); sub.apply(s.x);
        switch (s.x) { 1: { } 2: { g8(_); } } u.v.setValid(); s.y = p.lookahead(); verify_not();
    }
}
parser J(packet_in p, inout S s) {
    value_set<bit<8>>(4) vs; H[2] hs; V v;
    state start { p.extract(s.h); p.extract(v, 8); transition select(s.x, s.y) { (vs, 1 .. 3): next; _: accept; } }
    state next { p.extract(hs.next); verify(hs.last.a == 1, error.Bad); transition select(hs.lastIndex) { 1: start; } }
}
""".replace("verify_not();", "")
KINDS = (
    (
        tree.Number,
        tree.Name,
        tree.MemberExpression,
        tree.SliceExpression,
        tree.UnaryExpression,
        tree.BinaryExpression,
        tree.CastExpression,
        tree.ListExpression,
        tree.CallExpression,
    ),
    (tree.TypeName, tree.BaseType, tree.BitsTypeName, tree.StackTypeName, tree.TupleTypeName),
    (
        tree.AssignmentStatement,
        tree.CallStatement,
        tree.IfStatement,
        tree.ReturnStatement,
        tree.ExitStatement,
        tree.VariableDeclaration,
        tree.ConstantDeclaration,
    ),
)


def mutate(program: tree.SyntaxTree, chance: random.Random) -> None:
    """Puts a node in the place of another of its sort, or takes one away."""
    slots = [slot for declaration in program.declarations[-2:] for slot in walk(declaration)]
    for _ in range(chance.choice((1, 2, 4))):
        owner, name, index, node = chance.choice(slots)
        sort = next((kinds for kinds in KINDS if isinstance(node, kinds)), (type(node),))
        other = chance.choice([slot[3] for slot in slots if isinstance(slot[3], sort)])
        inside = {id(slot[3]) for slot in walk(other)} | {id(other)}
        if id(owner) in inside or isinstance(owner, tree.SpecializedType):
            continue
        held = getattr(owner, name)
        if index is None:
            setattr(owner, name, other)
        elif index < len(held) and not isinstance(held[index], tuple):
            held[index : index + 1] = [] if chance.random() < 0.2 else [other]


def outcome(program: tree.SyntaxTree) -> str:
    """ "checked", or the error's line."""
    try:
        check(program)
    except P4Error as error:
        return str(error)
    return "checked"


def test_programs_changed_at_random_are_checked_or_refused() -> None:
    chance = random.Random(5)
    outcomes = []
    whole = pickle.dumps(parse_text(LIBRARY + WHOLE, "p.p4"))
    for _ in range(200):
        program = pickle.loads(whole)
        mutate(program, chance)
        outcomes.append(outcome(program))
    assert 20 < outcomes.count("checked") < 180
    assert not any("\n" in line for line in outcomes)


def test_a_v1model_program_is_checked_whole() -> None:
    source = """
    #include <v1model.p4>
    header eth_t { bit<48> dst; bit<48> src; bit<16> kind; }
    struct headers { eth_t eth; }
    struct meta { @field_list(1) bit<8> kept; }
    parser P(packet_in p, out headers h, inout meta m, inout standard_metadata_t s) {
        state start { p.extract(h.eth); transition select(h.eth.kind) { 0x800: accept; default: reject; } }
    }
    control V(inout headers h, inout meta m) { apply { } }
    control I(inout headers h, inout meta m, inout standard_metadata_t s) {
        register<bit<32>>(16) seen;
        action drop() { mark_to_drop(s); }
        action forward(bit<9> port) { s.egress_spec = port; }
        table t { key = { h.eth.dst: exact; } actions = { drop; forward; } default_action = drop(); size = 64; }
        apply {
            bit<32> n;
            seen.read(n, (bit<32>)s.ingress_port & 15);
            hash(n, HashAlgorithm.crc32, 32w0, {h.eth.src, h.eth.dst}, 32w16);
            if (!t.apply().hit) { clone_preserving_field_list(CloneType.I2E, 5, 1); }
        }
    }
    control D(packet_out p, in headers h) { apply { p.emit(h); } }
    V1Switch(P(), V(), I(), I(), V(), D()) main;
    """
    found = check(parse_text(source, "p.p4"))
    assert found.main is not None
    assert [str(kind) for kind in found.instances[found.main].type_arguments] == ["headers", "meta"]
    assert found.errors[:2] == ["NoError", "PacketTooShort"]
    assert not found.warnings
    expressions = [
        n for d in found.program.declarations[-7:] for *_, n in walk(d) if isinstance(n, tree.ExpressionNode)
    ]
    parts = [n for n in expressions if not isinstance(n, tree.Default)]
    assert len(parts) > 60
    assert [type(n).__name__ for n in parts if n not in found.type_of] == []
