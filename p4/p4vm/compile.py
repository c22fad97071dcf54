"""From a P4 file to an engine that runs it, by way of a cache.

The cache holds, for what a program read and the engine's own sources, the IR; and for that and a compiler,
the library. What starts from it reads no P4.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from p4vm.cache import Cache, default_cache, digest
from p4vm.engine import Engine
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error, Position, engine_faults

if TYPE_CHECKING:
    from p4vm.native.build import Compiler
    from p4vm.tree.checked import Checked

BACKENDS = ("auto", "native", "python")
HERE = Path(__file__).parent
NOT_THE_COMPILER = ("control", "commands", "host", "stf", "fit", "planes")
"""Rooms that programs' code doesn't depend on."""


def front_end(
    path: str | Path, *, includes: Sequence[str | Path] = (), defines: Mapping[str, str] | None = None
) -> ir.ProgramIr:
    """The program as the back ends read it, compiled now. Raises P4Error."""
    return _front_end(path, includes, defines)[0]


def _front_end(
    path: str | Path, includes: Sequence[str | Path], defines: Mapping[str, str] | None
) -> tuple[ir.ProgramIr, tuple[str, ...]]:
    """The program, and all files that it was read from."""
    from p4vm.lower.lower_program import lower

    checked, files = checked_program(path, includes, defines)
    return lower(checked, str(path)), files


def checked_program(
    path: str | Path, includes: Sequence[str | Path], defines: Mapping[str, str] | None
) -> "tuple[Checked, tuple[str, ...]]":
    """The tree of a program of any architecture, and all files that it was read from. Raises P4Error."""
    from p4vm.check.check_program import check
    from p4vm.front.parse_program import parse
    from p4vm.front.preprocess import preprocess

    with engine_faults(lambda _: Position(str(path), 0, 0)):
        preprocessed = preprocess(path, [str(folder) for folder in includes], dict(defines or {}))
        return check(parse(preprocessed)), preprocessed.files


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

    backend: native, python, or auto: native where a C compiler is there, else a line on stderr says why not. cache: its
    folder; None: the user's own. optimize: 0 compiles fastest, None runs fastest.
    Raises P4Error: the program is wrong, there is no C compiler, or the cache can be written by others.
    """
    if backend not in BACKENDS:
        raise P4Error(f"there is no back end {backend}; choose one of {', '.join(BACKENDS)}")
    folder = default_cache() if cache is None else Cache(Path(cache))
    by = _wanted_compiler(path, backend)
    if by is None:
        from p4vm.python.python_engine import PythonEngine

        return PythonEngine(known_program(path, includes, defines, folder)[1])
    from p4vm.native import build
    from p4vm.native.native_engine import NativeEngine

    with build.runtime_meanwhile(by, folder):
        key, program = known_program(path, includes, defines, folder)
    level = build.OPTIMIZE if optimize is None else optimize
    return NativeEngine(program, *build.build(program, by, folder, key, level))


def _wanted_compiler(path: str | Path, backend: str) -> "Compiler | None":
    """None: take the Python back end. Raises P4Error: backend native needs one that isn't there."""
    if backend == "python":
        return None
    from p4vm.native import build as build

    try:
        return build.needed_compiler()
    except P4Error as error:
        if backend == "native":
            raise
        print(f"{path}: runs on the Python back end, which is slow: {error}", file=sys.stderr)
        return None


# ---- what was compiled before


@functools.lru_cache(maxsize=1)
def engine_version() -> str:
    """A digest of the sources that compile P4."""
    files = {path.relative_to(HERE): path for path in sorted(HERE.rglob("*")) if path.suffix in (".py", ".lark")}
    wanted = {str(name): path for name, path in files.items() if name.parts[0] not in NOT_THE_COMPILER}
    version = ".".join(map(str, sys.version_info[:2]))
    return digest(version, *(part for name, path in wanted.items() for part in (name, path.read_bytes())))


def known_program(
    path: str | Path, includes: Sequence[str | Path], defines: Mapping[str, str] | None, cache: Cache
) -> tuple[str, ir.ProgramIr]:
    """(key, program), from the cache where nothing that it was read from has changed. Raises P4Error."""
    folders = [os.path.abspath(folder) for folder in includes]
    arguments = json.dumps([str(path), os.path.abspath(path), folders, sorted((defines or {}).items())])
    name = digest(engine_version(), arguments)[:40]
    files = cache.load(f"{name}.files")
    if isinstance(files, dict) and all(content_of(file) == content for file, content in files.items()):
        key = digest(name, json.dumps(sorted(files.items())))
        pickled = cache.load(f"{key[:40]}.program")
        if isinstance(pickled, tuple) and isinstance(pickled[-1], ir.ProgramIr):
            return key, pickled[-1]
    started = time.time_ns()
    program, read = _front_end(path, includes, defines)
    files = {os.path.abspath(file): content_of(file) for file in read}
    settled = all(os.path.exists(file) and os.stat(file).st_mtime_ns < started for file in read)
    files |= {file: "" for file in shadows(list(files), os.path.dirname(os.path.abspath(path)), folders)}
    key = digest(name, json.dumps(sorted(files.items())))
    # callees first: so pickle nests no deeper than one routine does
    if settled:
        cache.store(f"{key[:40]}.program", (program.records, program.routines, program))
        cache.store(f"{name}.files", files)
        return key, program
    return digest(key, str(started)), program  # a file was written meanwhile: who knows which text was read


def content_of(file: str) -> str:
    """A key of what is in a file; "": it isn't there."""
    try:
        return digest(Path(file).read_bytes())
    except OSError:
        return ""


def shadows(files: Sequence[str], program_folder: str, includes: Sequence[str]) -> list[str]:
    """Files that aren't there: were they, they would be included in place of those that were read."""
    shadowing = []
    folders = [program_folder, *includes, str(HERE / "include")]
    for file in files:
        for at, folder in enumerate(folders):
            if file.startswith(folder + os.sep):
                inner = os.path.relpath(file, folder)
                shadowing += [os.path.join(earlier, inner) for earlier in folders[:at]]
    return [file for file in dict.fromkeys(shadowing) if file not in files and not os.path.exists(file)]
