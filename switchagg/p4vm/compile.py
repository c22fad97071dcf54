"""From a P4 file to an engine that runs it, by way of a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from switchagg.p4vm import ir
from switchagg.p4vm.engine import Engine
from switchagg.p4vm.source import P4Error

BACKENDS = ("auto", "native", "python")


def front_end(
    path: str | Path, *, includes: Sequence[str | Path] = (), defines: Mapping[str, str] | None = None
) -> ir.Program:
    """The program as the back ends read it. Raises P4Error."""
    from switchagg.p4vm.check import check
    from switchagg.p4vm.lower import lower
    from switchagg.p4vm.parse import parse
    from switchagg.p4vm.preprocess import preprocess

    preprocessed = preprocess(path, [Path(folder) for folder in includes], dict(defines or {}))
    return lower(check(parse(preprocessed)), str(path))


def compile_program(
    path: str | Path,
    *,
    backend: str = "auto",
    includes: Sequence[str | Path] = (),
    defines: Mapping[str, str] | None = None,
    cache: Path | None = None,
    optimize: int | None = None,
) -> Engine:
    """An engine for the program, ready to run.

    backend: native, python, or auto: native where a C compiler is there. cache: its folder; None: the user's own.
    optimize: 0 compiles fastest, None runs fastest. Raises P4Error: the program is wrong, or there is no C compiler.
    """
    if backend not in BACKENDS:
        raise P4Error(f"there is no back end {backend}; choose one of {', '.join(BACKENDS)}")
    from switchagg.p4vm.python_engine import PythonEngine

    return PythonEngine(front_end(path, includes=includes, defines=defines))
