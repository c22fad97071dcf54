"""Faults of the engine, said as ours with the program's line, and sizes that it refuses: on both back ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p4vm.check import check_statements as check
from p4vm.compile import compile_program, front_end
from p4vm.ir import ir_nodes as ir
from p4vm.lower import lower_program as lower
from p4vm.native import build
from p4vm.source import EngineFault, P4Error
from p4vm.tree import tree_nodes as tree
from p4vm.writer.code_writer import STATEMENTS

PROGRAM = """#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> x; }
header_union u_t { h_t h; }
struct carried_t { u_t u; }
struct headers { h_t h; u_t u; carried_t c; h_t[2] hs; }
struct metadata { }
parser P(packet_in b, out headers h, inout metadata m, inout standard_metadata_t s) {
    state start { PARSED transition accept; }
}
control N(inout headers h, inout metadata m) { apply { } }
control I(inout headers h, inout metadata m, inout standard_metadata_t s) {
    DECLARED
    apply {
        s.egress_spec = 1;
        if (s.ingress_port == 3) {
            h.h.setInvalid();
        }
        STATEMENT
    }
}
control E(inout headers h, inout metadata m, inout standard_metadata_t s) { apply { } }
control D(packet_out b, in headers h) { apply { b.emit(h); } }
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""
OURS = r"the P4 engine fails here: .*; that is a fault of p4vm, not of the program; please report it"
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="needs a C compiler")


def written(folder: Path, declared: str = "", statement: str = "", parsed: str = "") -> Path:
    path = folder / "prog.p4"
    text = PROGRAM.replace("DECLARED", declared).replace("STATEMENT", statement)
    path.write_text(text.replace("PARSED", parsed))
    return path


def wrong(text: str) -> Callable[[Any, ir.SetValid], None]:
    """What writes a line that is no code in place of setInvalid."""
    return lambda writer, _: writer.line(text)


def fails(*_: object) -> None:
    raise KeyError("a planted fault")


@needs_compiler
@pytest.mark.parametrize("planted", [wrong("h.no_such = 1;"), fails])
def test_c_that_is_wrong(planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATEMENTS, ir.SetValid, planted)
    with pytest.raises(EngineFault, match=rf"^\S*prog\.p4:17:\d+: {OURS}") as caught:
        compile_program(written(tmp_path), backend="native", cache=tmp_path / "cache", optimize=0)
    assert "install" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("planted", [wrong("no such = 1"), fails])
def test_python_that_is_wrong(planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATEMENTS, ir.SetValid, planted)
    with pytest.raises(EngineFault, match=rf"^\S*prog\.p4:17:\d+: {OURS}"):
        compile_program(written(tmp_path), backend="python", cache=tmp_path / "cache")


def test_python_that_fails_at_a_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATEMENTS, ir.SetValid, wrong("packet.no_such()"))
    engine = compile_program(written(tmp_path), backend="python", cache=tmp_path / "cache")
    assert engine.process(1, b"x") == [(1, b"x")]
    with pytest.raises(EngineFault, match=rf"^\S*prog\.p4:17:\d+: {OURS}"):
        engine.process(3, b"x")
    with pytest.raises(EngineFault, match=rf"^\S*prog\.p4:17:\d+: {OURS}"):
        engine.process_many([3], [b"x"])


@pytest.mark.parametrize("handlers", [check.HANDLERS, lower.STATEMENTS])
def test_a_front_end_that_fails(handlers: dict[type, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(handlers, tree.CallStatement, fails)
    with pytest.raises(EngineFault, match=rf"^\S*prog\.p4:17:\d+: {OURS}"):
        front_end(written(tmp_path))


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("counter(1 << 31, CounterType.packets) c;", r":13:\d+: counter I\.c has size 2147483648; at most"),
        ("register<bit<8>>(1 << 31) r;", r":13:\d+: register I\.r has size 2147483648; at most"),
        ("meter(1 << 31, MeterType.packets) r;", r":13:\d+: meter I\.r has size 2147483648; at most"),
        ("register<bit<65536>>(1 << 28) r;", r":13:\d+: registers, counters and meters up to register I\.r take"),
        ("register<headers>(1) r;", r":13:\d+: register I\.r holds neither"),
    ],
)
def test_sizes_are_refused_by_what_checks_a_program(declared: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=says):
        front_end(written(tmp_path, declared))


def test_variables_that_no_stack_holds_are_refused(tmp_path: Path) -> None:
    declared = "".join(f"h_t[65536] s{at}; " for at in range(5))
    used = "".join(f"s{at}[0].setValid(); " for at in range(5))
    with pytest.raises(P4Error, match=r":12:\d+: variables up to those of I take \d+ bytes; at most 4194304 are held"):
        front_end(written(tmp_path, declared, used))


def test_lookahead_at_what_holds_a_union_is_refused(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r":9:\d+: lookahead reads values of a fixed size; carried_t has none"):
        front_end(written(tmp_path, parsed="h.c = b.lookahead<carried_t>();"))


@needs_compiler
def test_lookahead_at_a_stack(tmp_path: Path) -> None:
    path = written(tmp_path, parsed="h.hs = b.lookahead<h_t[2]>();")
    for backend in ("python", "native"):
        engine = compile_program(path, backend=backend, cache=tmp_path / "cache", optimize=0)
        assert engine.process(1, b"abc") == [(1, b"ababc")], backend
