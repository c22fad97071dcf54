"""The parser: trees of small programs, places, errors word for word, and programs broken at random."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p4vm.front import parse_program
from p4vm.front.parse_program import parse_text
from p4vm.source import P4Error
from p4vm.tree import tree_nodes as tree

FEATURES = Path(__file__).resolve().parent / "features"
TYPES = (
    "header H { bit<8> a; bit<8> b; }\nstruct S { H h; }\nextern E { E(bit<8> n); void put<T>(in T x); T get<T>(); }\n"
)


def words_of(text: str) -> list[str]:
    return text.split()


def only(source: str) -> Any:
    """The last declaration of a program."""
    return parse_text(TYPES + source, "prog.p4").declarations[-1]


def shown(node: Any) -> Any:
    """A tree as nested text: the node's class and its parts, without places."""
    if isinstance(node, tree.Number):
        return str(node.value) if node.width is None else f"{node.width}{'s' if node.signed else 'w'}{node.value}"
    if isinstance(node, tree.Name):
        return ("." if node.dot else "") + node.name
    if isinstance(node, tree.BinaryExpression):
        return f"({shown(node.left)} {node.operator} {shown(node.right)})"
    if isinstance(node, tree.UnaryExpression):
        return f"{node.operator}{shown(node.operand)}"
    if isinstance(node, tree.MemberExpression):
        return f"{shown(node.base)}.{node.name}"
    if isinstance(node, tree.CastExpression):
        return f"[{shown(node.type)}]{shown(node.operand)}"
    if isinstance(node, tree.Conditional):
        return f"({shown(node.condition)} ? {shown(node.yes)} : {shown(node.no)})"
    if isinstance(node, tree.IndexExpression):
        return f"{shown(node.base)}[{shown(node.index)}]"
    if isinstance(node, tree.SliceExpression):
        high = shown(node.high) if node.high else "+"
        return f"{shown(node.base)}[{high}:{shown(node.low)}{'/' + shown(node.width) if node.width else ''}]"
    if isinstance(node, tree.CallExpression):
        types = f"<{', '.join(map(shown, node.type_arguments))}>" if node.type_arguments else ""
        return f"{shown(node.callee)}{types}({', '.join(map(shown, node.arguments))})"
    if isinstance(node, tree.CallArgument):
        value = "_" if node.value is None else shown(node.value)
        return f"{node.name} = {value}" if node.name else value
    return shown_rest(node)


def shown_rest(node: Any) -> str:
    if isinstance(node, tree.TypeExpression):
        return shown(node.type)
    if isinstance(node, tree.TypeName | tree.BaseType):
        return ("." if isinstance(node, tree.TypeName) and node.dot else "") + node.name
    if isinstance(node, tree.BitsTypeName):
        return f"{node.kind}<{shown(node.width)}>"
    if isinstance(node, tree.SpecializedType):
        return f"{shown(node.base)}<{', '.join(map(shown, node.arguments))}>"
    if isinstance(node, tree.StackTypeName):
        return f"{shown(node.element)}[{shown(node.size)}]"
    if isinstance(node, tree.TupleTypeName):
        return f"{'list' if node.is_list else 'tuple'}<{', '.join(map(shown, node.arguments))}>"
    if isinstance(node, tree.ListExpression):
        return "{" + ", ".join([*map(shown, node.items), *(["..."] if node.rest else [])]) + "}"
    if isinstance(node, tree.StructExpression):
        parts = [f"{name} = {shown(value)}" for name, value in node.fields]
        return "{" + ", ".join([*parts, *(["..."] if node.rest else [])]) + "}"
    if isinstance(node, tree.Mask):
        return f"{shown(node.value)} &&& {shown(node.mask)}"
    if isinstance(node, tree.Range):
        return f"{shown(node.low)} .. {shown(node.high)}"
    if isinstance(node, tree.BoolLiteral | tree.String):
        return repr(node.value)
    names: dict[type, str] = {tree.Default: "default", tree.InvalidHeader: "{#}", tree.DefaultRest: "..."}
    return names[type(node)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 + 2 * 3", "(1 + (2 * 3))"),
        ("1 - 2 - 3", "((1 - 2) - 3)"),
        ("a & b == c | d", "((a & b) == (c | d))"),
        ("a || b && c", "(a || (b && c))"),
        ("a < b == c >= d", "((a < b) == (c >= d))"),
        ("a ^ b & c | d", "((a ^ (b & c)) | d)"),
        ("a << 1 + 2 ++ b", "(a << ((1 + 2) ++ b))"),
        ("a |+| b |-| c % d", "((a |+| b) |-| (c % d))"),
        ("a >> 2 > b", "((a >> 2) > b)"),
        ("-a.b[3]", "-a.b[3]"),
        ("!a && ~b == - + c", "(!a && (~b == -+c))"),
        ("a ? b : c ? d : e", "((a ? b : c) ? d : e)"),  # as p4c
        ("a ? b ? c : d : e", "(a ? (b ? c : d) : e)"),
        ("a ? b : c == d && e", "(a ? b : ((c == d) && e))"),
        ("a || b ? 1 : 2", "((a || b) ? 1 : 2)"),
        ("(bit<8>) a + b", "([bit<8>]a + b)"),
        ("(H) - a", "[H]-a"),
        ("(a) - b", "(a - b)"),
        ("(bit<8>)(int<8>) -1", "[bit<8>][int<8>]-1"),
        ("(tuple<bit<8>, bool>) {1, true}", "[tuple<bit<8>, bool>]{1, True}"),
        ("(S) {h = {1, 2}, ...}", "[S]{h = {1, 2}, ...}"),
        ("{1, ...}", "{1, ...}"),
        ("{1, 2,}", "{1, 2}"),
        ("{}", "{}"),
        ("{#}", "{#}"),
        ("...", "..."),
        ("a[7:4]", "a[7:4]"),
        ("a[i +: 4]", "a[+:i/4]"),
        ("8w0x1F + 4s7 + 0b1_0 + 0o17 + 1_000 + 16w0b11", "(((((8w31 + 4s7) + 2) + 15) + 1000) + 16w3)"),
        ('"a\\"b\\\\c"', repr('a"b\\c')),
        ("f(x, y = 1, z = _, _)", "f(x, y = 1, z = _, _)"),
        ("p.get<bit<32>>()", "p.get<bit<32>>()"),
        ("p.get<tuple<bit<8>, list<bit<16>>>>()", "p.get<tuple<bit<8>, list<bit<16>>>>()"),
        ("f(a < b, c > (d))", "f((a < b), (c > d))"),
        ("a < (b)", "(a < b)"),
        ("(a < b) && (c > d)", "((a < b) && (c > d))"),
        ("f<H>(x) < 3", "(f<H>(x) < 3)"),
        ("f<_, bool>(x)", "f<_, bool>(x)"),
        ("error.NoMatch == e", "(error.NoMatch == e)"),
        ("H.x + .g + .f(1)", "((H.x + .g) + .f(1))"),
        ("a.apply().hit", "a.apply().hit"),
        ("a.key.actions.entries.state.type", "a.key.actions.entries.state.type"),
        ("a.priority.list.apply", "a.priority.list.apply"),
        ("E(8).get<bit<1>>()", "E(8).get<bit<1>>()"),
        ("(bit<(W > 3 ? 1 : 2)>) x", "[bit<((W > 3) ? 1 : 2)>]x"),
        (
            "type + state + key + list + priority + entries + actions + apply",
            "(((((((type + state) + key) + list) + priority) + entries) + actions) + apply)",
        ),
    ],
)
def test_expressions(source: str, expected: str) -> None:
    assert shown(only(f"const int x = {source};").value) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("bit", "bit<1>"),
        ("int", "int"),
        ("int<8>", "int<8>"),
        ("varbit<(2 * 8)>", "varbit<(2 * 8)>"),
        ("error", "error"),
        ("H[4][2]", "H[4][2]"),
        (".S", ".S"),
        ("G<bit<8>, G<H, bit<1>>>", "G<bit<8>, G<H, bit<1>>>"),
        ("tuple<>", "tuple<>"),
        ("list<tuple<H, bit<8>>>", "list<tuple<H, bit<8>>>"),
    ],
)
def test_types(source: str, expected: str) -> None:
    assert shown(only(f"struct G<A, B> {{ A a; B b; }}\nconst {source} x = 1;").type) == expected


def statements(body: str) -> list[Any]:
    return only(f"control con(inout S s, in bit<8> n) {{ apply {{ {body} }} }}").body.items


def test_statements() -> None:
    items = statements(
        "bit<8> x = 1; const bool k = true; H[2] hs; s.h.a = 1; s.h.a[3:0] |+|= 2; x >>= 1; s.h.a -= 1; f<H>(x);"
        " t.apply(); C.apply(x); { } ; return; exit; break; continue; (x) = 2; hs[1].a = 3; E<bit<8>>.f(1);"
    )
    kinds = [type(item).__name__ for item in items]
    assert kinds == words_of(
        "VariableDeclaration ConstantDeclaration VariableDeclaration AssignmentStatement AssignmentStatement"
        " AssignmentStatement AssignmentStatement CallStatement CallStatement CallStatement BlockStatement"
        " EmptyStatement ReturnStatement ExitStatement BreakStatement ContinueStatement AssignmentStatement"
        " AssignmentStatement CallStatement"
    )
    assert [item.operator for item in items[3:7]] == ["", "|+|", ">>", "-"]
    assert shown(items[9].call) == "C.apply(x)"
    assert shown(items[18].call) == "E<bit<8>>.f(1)"


def test_else_belongs_to_the_nearest_if() -> None:
    (outer,) = statements("if (a) if (b) x = 1; else if (c) x = 2; else x = 3;")
    assert outer.no is None
    assert isinstance(outer.yes.no, tree.IfStatement)
    assert shown(outer.yes.no.no.value) == "3"
    (loop,) = statements("for (bit<8> i in 1 .. 3) if (a) x = 1; else x = 2;")
    assert shown(loop.collection) == "1 .. 3"
    assert loop.body.no is not None


def test_loops() -> None:
    first, second = statements("for (bit<8> i = 0, j = 1; i < 4; i += 1, j = 2) { } for (@x H h in s.hs) { }")
    assert (first.init[0].name, shown(first.init[1].target)) == ("i", "j")
    assert [item.operator for item in first.step] == ["+", ""]
    assert (shown(second.type), second.name, shown(second.collection)) == ("H", "h", "s.hs")


def test_switches() -> None:
    (switch,) = statements("switch (t.apply().action_run) { a: b: { x = 1; } {1, 2}: { } default: { } }")
    assert [shown(case.label) for case in switch.cases] == ["a", "b", "{1, 2}", "default"]
    assert [case.body is None for case in switch.cases] == [True, False, False, False]


def test_tables() -> None:
    control = only(
        """control c(inout S s) {
            action a(bit<8> v) { } action b() { }
            @name("tab") table t {
                key = { s.h.a : exact @name("A"); s.h.a ++ s.h.b : ternary; }
                actions = { a; @tableonly .b; a(s.h.a); }
                const default_action = a(1);
                size = 16;
                const entries = {
                    (1, 2 &&& 3) : a(1) @name("first");
                    const priority = 10 : (1 .. 2, _) : b();
                    priority = (1 + 2) : (default, 5) : b;
                }
                key_like = 3;
            }
            apply { } }"""
    )
    table = control.locals[2]
    assert [(shown(key.expression), key.match_kind) for key in table.keys] == [
        ("s.h.a", "exact"),
        ("(s.h.a ++ s.h.b)", "ternary"),
    ]
    assert [(ref.name, ref.dot, len(ref.arguments)) for ref in table.actions] == [
        ("a", False, 0),
        ("b", True, 0),
        ("a", False, 1),
    ]
    assert (table.default_action.name, table.default_const, table.entries_const) == ("a", True, True)
    assert [[shown(key) for key in entry.keys] for entry in table.entries] == [
        ["1", "2 &&& 3"],
        ["1 .. 2", "default"],
        ["default", "5"],
    ]
    assert [entry.const for entry in table.entries] == [False, True, False]
    assert [entry.priority and shown(entry.priority) for entry in table.entries] == [None, "10", "(1 + 2)"]
    assert [(given.name, shown(given.value)) for given in table.properties] == [("size", "16"), ("key_like", "3")]
    assert table.annotations[0].args[0].value == "tab"


def test_parsers() -> None:
    parser = only(
        """parser p(E b, out S s)(bit<8> n) {
            E(1) e; bit<8> x = 1; value_set<tuple<bit<8>, bool>>(4) vs;
            state start { x = 2; { bit<8> y; } transition select(s.h.a, x) {
                (1, 2): next; (_, 3 .. 4 + 1): reject; (5 | 1 &&& 6 << 1, default): accept;
                default: accept; vs: next; } }
            state next { transition accept; } state last { } }"""
    )
    assert [type(item).__name__ for item in parser.locals] == ["Instance", "VariableDeclaration", "ValueSetDeclaration"]
    assert [parameter.name for parameter in parser.constructor_parameters] == ["n"]
    start, following, last = parser.states
    assert [[shown(key) for key in case.keys] for case in start.transition.cases] == [
        ["1", "2"],
        ["default", "3 .. (4 + 1)"],
        ["(5 | 1) &&& (6 << 1)", "default"],
        ["default"],
        ["vs"],
    ]
    assert (following.transition.state, last.transition) == ("accept", None)


def test_generics_and_type_parameters() -> None:
    function = only("T pick<T, U>(in T x, in U y) { return x; }")
    assert (shown(function.prototype.returns), function.prototype.type_parameters) == ("T", ["T", "U"])
    method = parse_text(TYPES).declarations[-1].methods[2]
    assert (shown(method.returns), method.name, method.type_parameters) == ("T", "get", ["T"])
    with pytest.raises(P4Error, match="'T' is no type that is declared before this"):
        only("T pick<T>(in T x) { return x; }\nconst T y = 1;")


def test_names_hide_types() -> None:
    control = only("control c(inout S s, in bit<8> H) { action E() { } apply { bit<8> x = (H) - 1; E(); } }")
    assert shown(control.body.items[0].value) == "(H - 1)"
    assert shown(control.body.items[1].call) == "E()"
    control = only("control c() { apply { { bit<8> H = 1; } bit<8> x = (H) - 1; } }")
    assert shown(control.body.items[1].value) == "[H]-1"
    structure = only("struct Q { H H; S S; H other; }")
    assert [(shown(item.type), item.name) for item in structure.fields] == [("H", "H"), ("S", "S"), ("H", "other")]


def test_annotations() -> None:
    declared = only(
        '@a @b() @c("x", 1) @d(k = 1, l = "m") @e[1, 2] @f[k = 3] @g(any $ (thing) "here") const bool x = true;'
    )
    found = {note.name: note for note in declared.annotations}
    assert list(found) == list("abcdefg")
    assert [shown(arg) for arg in found["c"].args] == ["'x'", "1"]
    assert {name: shown(value) for name, value in found["d"].pairs.items()} == {"k": "1", "l": "'m'"}
    assert [shown(arg) for arg in found["e"].args] == ["1", "2"]
    assert (found["f"].pairs["k"].value, found["g"].args) == (3, [])
    assert found["g"].tokens == 'any $ (thing) "here"'
    declared = only("@pragma stage 3 ignore\nconst bool x = true;")
    assert (declared.annotations[0].name, declared.annotations[0].tokens) == ("stage", "3 ignore")


def test_annotations_deep_in_annotations_stay_text() -> None:
    declared = only("@a(" * 5000 + ")" * 5000 + " action f() { }")
    assert declared.annotations[0].tokens.startswith("@a(@a(")


def test_declarations() -> None:
    program = parse_text(
        TYPES
        + """typedef bit<9> Port; type Port Own; typedef struct T { Port p; } U; const U u = {1};
        enum Kind { A, H, C, } enum bit<8> Code { X = 1, Y = 2 } error { One, Two } match_kind { near }
        header_union HU { H a; H b; } struct Pair<A, B> { A a; B b; }
        extern F<T> { F(T x); abstract bit<8> f(in T x); } extern G; extern void go<T>(in T x);
        extern Pair<bit<8>, T> mk<T>();
        parser P<A>(in A a); control C<A>(inout A a); package Pack<A>(P<A> p, C<A> c = 3);
        control Impl(inout H h)(bit<8> n) { bit<8> v; apply { } }
        action act(in bit<8> x, bit<8> y) { } ; bit<8> twice(in bit<8> x) { return x + x; }
        Pack(Impl(3), p = Impl(4)) main; F<bit<8>>(1) f = { bit<8> f(in bit<8> x) { return x; } };"""
    )
    kinds = [type(item).__name__ for item in program.declarations[3:]]
    assert kinds == words_of(
        "TypeDef TypeDef TypeDef ConstantDeclaration EnumDeclaration EnumDeclaration Errors MatchKinds"
        " StructureDeclaration StructureDeclaration ExternDeclaration ExternFunction ExternFunction ParserType"
        " ControlType PackageType ControlDeclaration Action Function Instance Instance"
    )
    assert [item.distinct for item in program.declarations[3:6]] == [False, True, False]
    assert program.declarations[13].methods[1].abstract
    assert isinstance(program.declarations[-1].members[0], tree.Function)


def test_places() -> None:
    source = "control c(inout S s) {\n  apply {\n    if (s.h.a == 1)\n      s.h.b = f(\n        x) + y;\n  }\n}"
    condition = only(source).body.items[0]
    line = TYPES.count("\n")
    places = {
        "if": condition,
        "==": condition.condition,
        "a": condition.condition.left,
        "=": condition.yes,
        "+": condition.yes.value,
        "call": condition.yes.value.left,
        "y": condition.yes.value.right,
    }
    assert {name: (node.position.line - line, node.position.column) for name, node in places.items()} == {
        "if": (3, 5),
        "==": (3, 15),
        "a": (3, 13),
        "=": (4, 11),
        "+": (5, 12),
        "call": (4, 15),
        "y": (5, 14),
    }
    assert condition.position.file == "prog.p4"


IN_CONTROL = "control c(inout S s) {{ action a() {{ }} {} }}"
ERRORS: list[tuple[str, str]] = [
    (IN_CONTROL.format("apply { s.h.a = 1 }"), "1:57: found '}'; expected ';'"),
    (IN_CONTROL.format("apply { s.h.a = 1\n s.h.b = 2; }"), "1:55: found 's' on a later line; expected ';' after '1'"),
    (IN_CONTROL.format("apply { s.h.a = ; }"), "1:55: found ';'; expected an expression"),
    (IN_CONTROL.format("apply { s.h.a = (1 + 2; }"), "1:61: found ';'; expected ')'"),
    (IN_CONTROL.format("apply { if s.h.a == 1 { } }"), "1:50: found 's'; expected '('"),
    (IN_CONTROL.format("apply { Foo x; }"), "1:47: 'Foo' is no type that is declared before this; expected a type"),
    (IN_CONTROL.format("apply { s.h.a++; }"), "1:52: P4 has no '++' for counting; use += 1 or -= 1"),
    (IN_CONTROL.format("apply { while (true) { } }"), "1:47: P4 has no 'while'; use for (…; …; …)"),
    (
        IN_CONTROL.format("apply { E(1) e; }"),
        "1:52: e is an instance; declare it in the control or parser itself, before its statements",
    ),
    (
        IN_CONTROL.format("table t { key = { s.h.a exact; } } apply { }"),
        "1:63: found 'exact'; expected ':' or an operator",
    ),
    (IN_CONTROL.format("table t { actions = { a } } apply { }"), "1:63: found '}'; expected ';' or '('"),
    (
        IN_CONTROL.format("table t { size = 1; size = 2; } apply { }"),
        "1:59: table t has two properties 'size'; merge them",
    ),
    (
        IN_CONTROL.format("table t { default_action = 1; } apply { }"),
        "1:66: default_action: expected an action, as in NoAction or forward(1)",
    ),
    (IN_CONTROL.format(""), "1:40: found '}'; expected a type, 'action', 'apply', 'const' or 'table'"),
    (
        "control c(inout Later s) { apply { } }\nstruct Later { }",
        "1:17: type Later is declared only later, at prog.p4:5:8; expected it before its first use",
    ),
    (
        "parser p(in packet_in b) { state start { } }",
        "1:13: 'packet_in' is no type that is declared before this; include <core.p4> first",
    ),
    (
        "parser p(in S s) { state start { return; } }",
        "1:34: a parser state can't hold 'return'; use transition and states instead",
    ),
    ("parser p(in S s) { }", "1:20: found '}'; expected a type, 'const', 'state' or 'value_set'"),
    ("header x { bit<8> a, bit<8> b; }", "1:20: found ','; expected ';' or '['"),
    ("const bit<8> table = 3;", "1:14: found 'table', which is a keyword; expected a name"),
    (
        "const int x = 8w0xZZ;",
        "1:15: malformed number 8w0xZZ; expected a number such as 10, 0xFF, 8w255, 4s7 or 0b1010",
    ),
    ("const int x = 0x_;", "1:15: malformed number 0x_; expected digits after the base"),
    ("const int x = $;", "1:15: found '$', which is no part of P4; expected an expression"),
    ('const string x = "abc;', '1:18: the string that starts here has no end; expected "'),
    ("/* no end", "1:1: the comment that starts here has no end; expected */"),
    (
        "action f() {\n",
        "1:12: found the end of the program, but the '{' of prog.p4:4:12 isn't closed yet; expected '}'",
    ),
    ("action f() { ] }", "1:14: found ']', but the '{' of prog.p4:4:12 isn't closed yet; expected '}'"),
    ("}", "1:1: '}' closes nothing; remove it, or open it before"),
    ("else", "1:1: found 'else'; expected a declaration or the end of the program"),
    ("enum X { A = 1 }", "1:10: A has a value, so the enum needs a type: enum bit<8> X"),
    ("enum bit<8> X { A }", "1:17: member A of an enum with a type; expected '= value' after it"),
    ("@[x] action f() { }", "1:2: found '['; expected the name of an annotation"),
    ('@name("x" action f() { }', "1:6: the annotation has no end; expected ')'"),
    ("@name[k = ] action f() { }", "1:9: found ']'; expected an expression"),
]


@pytest.mark.parametrize(("source", "expected"), ERRORS)
def test_errors(source: str, expected: str) -> None:
    with pytest.raises(P4Error) as caught:
        only(source)
    line, rest = expected.split(":", 1)
    assert str(caught.value).startswith(f"prog.p4:{int(line) + TYPES.count(chr(10))}:{rest}")


def test_errors_in_macros_and_includes_name_the_authors_place() -> None:
    with pytest.raises(P4Error, match=r"^prog\.p4:2:3: found ';'; expected an expression"):
        parse_text("#define BAD const int x = ;\n  BAD\n", "prog.p4")


@pytest.mark.parametrize(
    "source",
    [
        "const int x = " + "(" * 5000 + "1" + ")" * 5000 + ";",
        "const int x = " + "-" * 5000 + "1;",
        "const int x = " + "1 + " * 5000 + "1;",
        "const int x = a" + ".b" * 5000 + ";",
        "const int x = " + "a ? b : " * 5000 + "c;",
        "const int x = " + "(bit<8>) " * 5000 + "c;",
        "const " + "tuple<" * 5000 + ">" * 5000 + " x = 1;",
        "action f() { " + "{ " * 5000 + "} " * 5000 + "}",
        "action f() { " + "if (x) " * 5000 + "; }",
        "action f() { if (x) ; " + "else if (x) ; " * 5000 + "}",
        "const int x = " + "9" * 5000 + ";",
    ],
    ids=lambda source: source[:24],
)
def test_what_nests_too_deeply_is_an_error(source: str) -> None:
    with pytest.raises(P4Error, match=r"^prog.p4:1:\d+: "):
        parse_text(source, "prog.p4")


def test_the_grammar_has_no_conflicts(caplog: pytest.LogCaptureFixture) -> None:
    import lark

    grammar = Path(parse_program.__file__).with_name("p4.lark").read_text()
    with caplog.at_level("DEBUG", "lark"):
        lark.Lark(grammar, parser="lalr", lexer=parse_program._Tokens, start=parse_program._STARTS, debug=True)
    assert caplog.messages == []


def test_works_without_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "cache", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        assert parse_program._Parser().marks["control"] == "CONTROL"
    saved = next((tmp_path / "cache").rglob("grammar*"))
    saved.write_bytes(saved.read_bytes()[:1000])
    assert parse_program._Parser().marks["control"] == "CONTROL"


ODDITIES = ["\n#if ", "/*", "##", "...", "\n#define x ", "8w", "\\\n"]
MUTATIONS: list[Callable[[list[str], random.Random, int], None]] = [
    lambda words, chance, at: words.pop(at),
    lambda words, chance, at: words.insert(at, words[at]),
    lambda words, chance, at: words.insert(at, chance.choice('(){}<>[]@"#;,.:=') or ""),
    lambda words, chance, at: words.__setitem__(at, chance.choice(words)),
    lambda words, chance, at: words.__setitem__(at, chr(chance.randrange(1, 400))),
    lambda words, chance, at: words.insert(at, chance.choice(ODDITIES)),
]


@pytest.mark.parametrize("seed", range(60))
def test_broken_programs_give_errors_or_trees(seed: int) -> None:
    chance = random.Random(seed)
    files = sorted(FEATURES.glob("*.p4"))
    source = TYPES + chance.choice(files).read_text()
    source = re.sub(r"#include.*", "", source)
    words = re.findall(r"\w+|\s+|[^\w\s]", source)
    for _ in range(chance.choice([1, 1, 2, 8])):
        chance.choice(MUTATIONS)(words, chance, chance.randrange(len(words)))
    try:
        program, fault = parse_text("".join(words), "prog.p4"), None
    except P4Error as error:
        program, fault = None, error
    assert isinstance(program, tree.SyntaxTree) or (fault and fault.position.line and "\n" not in str(fault))
