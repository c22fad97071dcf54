"""Architectures are descriptions: one that is added to the table runs on both back ends, with nothing else changed."""

from pathlib import Path

import pytest
from native_programs import compile_many

from p4vm.architectures.architecture_table import ARCHITECTURES
from p4vm.architectures.description import Architecture, Input, Move, Pass, Source, Step
from p4vm.compile import front_end
from p4vm.engine import Engine
from p4vm.python.python_engine import PythonEngine
from p4vm.source import P4Error

INCLUDE = """#include <core.p4>
struct toy_t { bit<16> from; bit<16> to; bit<32> size; bool again; }
extern cells<T> {
    cells(bit<32> size);
    void read(out T value, in bit<32> index);
    void write(in bit<32> index, in T value);
}
parser Parser<H>(packet_in p, out H h);
control Main<H>(inout H h, inout toy_t toy);
control Deparser<H>(packet_out p, in H h);
package Toy<H>(Parser<H> parser_block, Main<H> main_block, Deparser<H> deparser_block);
"""
PROGRAM = """#include "toy.p4"
header h_t { bit<16> to; bit<16> count; }
struct headers_t { h_t h; }
parser P(packet_in p, out headers_t h) { state start { p.extract(h.h); transition accept; } }
control M(inout headers_t h, inout toy_t toy) {
    cells<bit<16>>(16) seen;
    apply {
        bit<16> count;
        seen.read(count, (bit<32>)toy.from);
        seen.write((bit<32>)toy.from, count + 1);
        h.h.count = count;
        toy.to = h.h.to;
        if (h.h.to == 8 && toy.from != 8) { toy.again = true; }
    }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h.h); } }
Toy(P(), M(), D()) main;
"""
TOY = Architecture(
    name="toy",
    package="Toy",
    include="toy.p4",
    records=("headers", "toy"),
    roles=("parser", "main", "deparser"),
    ingress=Pass(
        (Input("toy.from", Source.PORT), Input("toy.size", Source.LENGTH)),
        (
            Step(Move.PARSE, "parser", ("headers",)),
            Step(Move.RUN, "main", ("headers", "toy")),
            Step(Move.DROP, field="toy.to", equals=0xFFFF),
            Step(Move.UNICAST, "", ("headers", "toy"), "toy.to"),
        ),
    ),
    egress=Pass(
        (),
        (
            Step(Move.DEPARSE, "deparser", ("headers",)),
            Step(Move.RECIRCULATE, field="toy.again"),
            Step(Move.SEND),
        ),
    ),
    externs={"cells": "register"},
)


def engines(folder: Path) -> list[Engine]:
    (folder / "toy.p4").write_text(INCLUDE)
    (folder / "program.p4").write_text(PROGRAM)
    program = front_end(folder / "program.p4")
    try:
        return [PythonEngine(program), *compile_many([program])]
    except P4Error as error:
        if "compiler" not in str(error):
            raise
        pytest.skip(str(error))


def test_adding_an_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "Toy", TOY)
    for engine in engines(tmp_path):
        assert engine.process(3, bytes.fromhex("0007 0000 ee")) == [(7, bytes.fromhex("0007 0000 ee"))], engine.backend
        assert engine.process(3, bytes.fromhex("0001 0000")) == [(1, bytes.fromhex("0001 0001"))]
        assert engine.process(3, bytes.fromhex("ffff 0000")) == []
        assert engine.process(3, bytes.fromhex("0008 0000")) == [(8, bytes.fromhex("0008 0000"))]
        assert engine.counters.dropped == 1
        assert engine.register_read("M.seen", 3) == 4


def test_an_architecture_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r"main is a Toy; the engine runs V1Switch of v1model\.p4, PSA_Switch of psa\.p4"):
        engines(tmp_path)
