"""From IR to a shared library, with the system's C compiler."""

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from p4vm.c_code.c_program import c_of
from p4vm.c_code.c_tables import ProgramLayout
from p4vm.cache import Cache, digest
from p4vm.ir import ir_nodes as ir
from p4vm.lines import place_of
from p4vm.source import EngineFault, P4Error, P4vmError

RUNTIME = Path(__file__).with_name("runtime")
UNITS = ("bits.c", "wide.c", "packet.c", "tables.c", "externs.c", "pipeline.c", "engine.c")
"""Sources of the runtime, beside its headers."""
FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-w")
OPTIMIZE = 2
"""The compiler's level of optimisation for programs: 32 values take 0.2 s more of the compiler than at 1, and run a
quarter faster."""
RUNTIME_OPTIMIZE = 2
COMPILE_SECONDS_MAX = 600.0
REMEDY = "install gcc or clang (Debian: apt install gcc libc6-dev), or set CC, or take backend python"
"""Where there is no C compiler."""
REMEDY_OF_ONE = "see what it lacks by compiling any C program with it, or set CC to another, or take backend python"
"""Where the C compiler that is there fails at anything."""
FAULT = re.compile(r"^program(?P<program>\d+)\.c:(?P<line>\d+):(?:\d+:)? error: (?P<said>.*)$", re.MULTILINE)
"""The message of a compiler that refuses the C of a program; it has compiled the runtime before that."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """command: how it is called. identity: changes with another compiler."""

    command: tuple[str, ...]
    identity: str


@functools.lru_cache(maxsize=8)
def _compiler(choice: str | None, path: str | None) -> Compiler | None:
    for name in [choice] if choice else ["cc", "gcc", "clang"]:
        command = shlex.split(name)
        path_of_command = shutil.which(command[0], path=path) if command else None
        if path_of_command:
            real = os.stat(path_of_command)
            place = f"{os.path.realpath(path_of_command)} {real.st_size} {real.st_mtime_ns}"
            return Compiler((path_of_command, *command[1:]), f"{place} {' '.join(command[1:])}")
    return None


def compiler() -> Compiler | None:
    """$CC, or cc, gcc, clang, whichever is there."""
    return _compiler(os.environ.get("CC"), os.environ.get("PATH"))


def needed_compiler() -> Compiler:
    """As `compiler`. Raises P4Error: there is none."""
    present = compiler()
    if present is None:
        wanted = f"CC={os.environ['CC']} is not there" if os.environ.get("CC") else "there is no C compiler"
        raise P4Error(f"{wanted}; {REMEDY}")
    return present


def run(command: Sequence[str], folder: Path, files: Sequence[str] = ()) -> None:
    """Run the compiler. files: those of the programs in program0.c, …

    Raises EngineFault: it refuses C that the engine wrote; P4Error: it can't be run, or fails for a reason of its own.
    """
    try:
        done = subprocess.run(
            list(command), cwd=folder, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS_MAX
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise P4Error(f"the C compiler {command[0]} can't be run: {error}; {REMEDY}") from None
    if done.returncode:
        raise failure(command[0], done, folder, files)


def failure(by: str, done: subprocess.CompletedProcess[str], folder: Path, files: Sequence[str]) -> P4vmError:
    """The error to raise when the compiler fails: the engine's, or the compiler's own."""
    if fault := FAULT.search(done.stderr):
        lines = (folder / f"program{fault['program']}.c").read_text().splitlines()
        place = place_of(lines, int(fault["line"]), files[int(fault["program"])])
        return EngineFault(f"{by} refuses its C ({fault['said']}; backend python may run it)", place)
    lines = done.stderr.strip().splitlines()
    words = next((line for line in lines if "error" in line), lines[-1] if lines else f"exit code {done.returncode}")
    return P4Error(f"the C compiler {by} fails: {words[:300]}; {REMEDY_OF_ONE}")


@functools.lru_cache(maxsize=1)
def runtime_sources() -> dict[str, bytes]:
    return {name: (RUNTIME / name).read_bytes() for name in (*UNITS, "bits.h", "tables.h", "p4vm.h")}


@functools.lru_cache(maxsize=8)
def runtime_key(by: Compiler) -> str:
    """Cache key of the runtime's object."""
    parts = [part for name, data in runtime_sources().items() for part in (name.encode(), data)]
    return digest(by.identity, " ".join((*FLAGS, str(RUNTIME_OPTIMIZE))), *parts)


def runtime_name(by: Compiler) -> str:
    return f"runtime-{runtime_key(by)[:32]}.o"


def runtime_object(by: Compiler, cache: Cache) -> Path:
    """The runtime, compiled: all programs link it."""
    everything = "".join(f'#include "{unit}"\n' for unit in UNITS)
    return compiled_once(by, cache, runtime_name(by), everything, [f"-O{RUNTIME_OPTIMIZE}", "-c"])


def compiled_once(by: Compiler, cache: Cache, name: str, text: str, flags: Sequence[str]) -> Path:
    """The file of this name in the cache, made of C text unless it is there as it was made. Raises P4Error."""
    if cache.read(f"{name}.sum") != (file_digest(cache.trusted(name)) or b""):
        with cache.replacing(name) as path, tempfile.TemporaryDirectory(prefix="p4vm-") as folder:
            Path(folder, "source.c").write_text(text)
            run([*by.command, *FLAGS, *flags, f"-I{RUNTIME}", "source.c", "-o", str(path)], Path(folder))
            path.chmod(0o700)
        cache.write(f"{name}.sum", file_digest(cache.trusted(name)) or b"")
    return cache.path(name)


@contextlib.contextmanager
def runtime_meanwhile(by: Compiler, cache: Cache) -> Iterator[None]:
    """Has the runtime compiled beside what is done within, where it isn't there yet."""
    name = runtime_name(by)
    if cache.trusted(name):
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(runtime_object, by, cache)  # what is wrong with it shows when it is linked
        yield


def file_digest(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return digest(path.read_bytes()).encode()
    except OSError:
        return None


def library_of(
    by: Compiler, texts: Sequence[str], files: Sequence[str], runtime: Path, to: Path, optimize: int
) -> None:
    """Compile and link programs, of these files, into one library at `to`. Raises P4Error, EngineFault."""
    with tempfile.TemporaryDirectory(prefix="p4vm-") as name:
        folder = Path(name)
        for at, text in enumerate(texts):
            (folder / f"program{at}.c").write_text(text)
        flags = [*by.command, *FLAGS, f"-O{optimize}", f"-I{RUNTIME}"]
        if len(texts) == 1:
            run([*flags, "-shared", "program0.c", str(runtime), "-o", str(to)], folder, files)
            return
        workers = os.cpu_count() or 1
        shares = [[f"program{at}.c" for at in range(first, len(texts), workers)] for first in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda share: run([*flags, "-c", *share], folder, files) if share else None, shares))
        objects = [f"program{at}.o" for at in range(len(texts))]
        run([*flags, "-shared", *objects, str(runtime), "-o", str(to)], folder)


def build(program: ir.ProgramIr, by: Compiler, cache: Cache, key: str, optimize: int) -> tuple[Path, ProgramLayout]:
    """The program's library, from the cache or made now, and its layout. key: of the program's text and the engine."""
    name = f"{digest(key, by.identity, runtime_key(by), str(optimize))[:40]}"
    known = cache.load(f"{name}.layout")
    if isinstance(known, tuple) and known[0] == file_digest(cache.trusted(f"{name}.so")):
        return cache.path(f"{name}.so"), known[1]
    text, layout = c_of(program)
    with cache.replacing(f"{name}.so") as path:
        library_of(by, [text], [program.file], runtime_object(by, cache), path, optimize)
        path.chmod(0o700)
        checksum = file_digest(path)
    cache.prune()
    cache.store(f"{name}.layout", (checksum, layout))
    return cache.path(f"{name}.so"), layout
