"""The C core under a coverage-guided fuzzer for a bounded time, and under bugs that the fuzzer must find.

SWITCHAGG_FUZZ_S=600 lengthens each search. The targets say what they check: fuzz_plane.c, fuzz_endpoint.c,
fuzz_qp.c.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native import fuzz_seeds
from tests.native.core_sources import CODECS, CORE, ROOT, planted, source

pytestmark = pytest.mark.long

SOURCES = {
    "fuzz_plane": ["plane.c"],
    "fuzz_endpoint": [
        "plane.c",
        "tag.c",
        "mask.c",
        "endpoint.c",
        "verified_sums.c",
        "partial_sums.c",
        "window.c",
        "call.c",
        "small_call.c",
        *CODECS,
    ],
    "fuzz_qp": [
        "qp.c",
        "qp_request.c",
        "qp_respond.c",
        "qp_reorder.c",
        "rdma_memory.c",
        "roce.c",
        "roce_crc.c",
        "dcqcn.c",
    ],
}
# float-cast-overflow is undefined behaviour, too, but not part of `undefined`. SA_NO_CLONES: the loader chooses among
# clones before the sanitizers are ready.
FLAGS = ["-std=gnu11", "-O1", "-g", "-DSA_NO_CLONES", "-fsanitize=fuzzer,address,undefined,float-cast-overflow"]
SEARCH_S = int(os.environ.get("SWITCHAGG_FUZZ_S", "5"))
EMPTY_TARGET = (
    "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n) { (void)d; return n > 1u << 31; }"
)


@pytest.fixture(scope="session")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Whether leaks can be looked for, "1" or "0": not where processes may not be traced. Skips without libFuzzer."""
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("needs libFuzzer: clang and its runtime (Debian: clang, libclang-rt-dev)")
    folder = tmp_path_factory.mktemp("libfuzzer")
    (folder / "empty.c").write_text(EMPTY_TARGET)
    if subprocess.run(
        [clang, *FLAGS, "empty.c", "-o", "empty"], cwd=folder, capture_output=True, timeout=60
    ).returncode:
        pytest.skip("needs libFuzzer: this clang has no runtime for it (Debian: libclang-rt-dev)")
    for choice in ("1", "0"):
        run = ["./empty", "-runs=10", f"-detect_leaks={choice}"]
        if subprocess.run(run, cwd=folder, capture_output=True, timeout=300).returncode == 0:
            return choice
    pytest.skip("needs libFuzzer: an empty target built with it doesn't run here")


def clang(core: Path, *arguments: str) -> None:
    command = ["clang", *FLAGS, "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror", f"-I{core}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def codecs(leaks: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The codecs, compiled once: no bug is planted in them."""
    folder = tmp_path_factory.mktemp("codecs")
    made = {name: folder / f"{name}.o" for name in CODECS}
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        list(compilers.map(lambda name: clang(CORE, "-c", str(source(name)), "-o", str(made[name])), CODECS))
    return made


def build(target: str, core: Path, folder: Path, codecs: dict[str, Path]) -> Path:
    files = [
        ROOT / f"tests/native/{target}.c",
        *(codecs.get(name) or source(name, core) for name in SOURCES[target]),
    ]
    clang(core, *map(str, files), "-lm", "-o", str(folder / target))
    return folder / target


def start(program: Path, leaks: str, seconds: int) -> "subprocess.Popen[str]":
    """Fuzz from the seeds; the same search on every machine of the same speed. Says what it does in `program`.log."""
    corpus = program.parent / "corpus"
    corpus.mkdir()
    fuzz_seeds.write(program.name, corpus)
    # Its limit of RSS counts the peak of the process that started it, too: pytest's.
    limits = ["-rss_limit_mb=0", "-malloc_limit_mb=1024"]
    bounds = [*limits, f"-max_total_time={seconds}", "-max_len=600", "-timeout=20", "-seed=1", f"-detect_leaks={leaks}"]
    command = [str(program), *bounds, f"-artifact_prefix={program.parent}/", str(corpus)]
    with program.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, text=True)


def search(program: Path, leaks: str, seconds: int) -> tuple[int, str]:
    """Exit status of a search, and its output."""
    with start(program, leaks, seconds) as process:
        return ended(process, program)


def ended(process: "subprocess.Popen[str]", program: Path) -> tuple[int, str]:
    try:
        status = process.wait()
    finally:
        process.kill()
    return status, program.with_suffix(".log").read_text(errors="replace")


@pytest.fixture(scope="module")
def searches(
    leaks: str, codecs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple["subprocess.Popen[str]", Path]]]:
    """A running search of each target, all at the same time."""
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        folders = {target: tmp_path_factory.mktemp(target) for target in SOURCES}
        programs = list(compilers.map(lambda target: build(target, CORE, folders[target], codecs), SOURCES))
    running = {program.name: (start(program, leaks, SEARCH_S), program) for program in programs}
    yield running
    for process, _ in running.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("target", SOURCES)
def test_finds_nothing(target: str, searches: dict[str, tuple["subprocess.Popen[str]", Path]]) -> None:
    process, program = searches[target]
    status, said = ended(process, program)
    found = "".join(f"\n{path}: {path.read_bytes().hex()}" for path in program.parent.glob("*-*"))
    assert status == 0, f"{said[-4000:]}{found}\nreplay: {program} FILE"
    assert "Done " in said


@pytest.mark.parametrize(
    ("target", "file", "right", "wrong"),
    [
        ("fuzz_plane", "slot.h", "distance == two_windows", "distance < two_windows << 8"),
        ("fuzz_plane", "plane.c", "if (rank >= share->ranks) return SA_DROP_RANK;", ""),
        ("fuzz_plane", "slot.h", "| (distance ? 0 : *marked)", ""),
        ("fuzz_plane", "slot.h", "before ? SA_KEEP : SA_ZERO", "SA_KEEP"),
        ("fuzz_plane", "slot.h", "if (chunk != held) return decision;", "if (chunk > held) return decision;"),
        ("fuzz_plane", "slot.h", "*requesters = 0;", ""),
        ("fuzz_endpoint", "layout.h", "end - span.low < layout->width ? end - span.low :", ""),
        ("fuzz_qp", "rdma_memory.c", "(region->access & access) != access", "access > 3"),
        ("fuzz_endpoint", "endpoint.c", "(uint32_t)slot->chunk != SA_BE32(header.chunk) ||", ""),
    ],
    ids=[
        "any newer chunk taken",
        "no bound for the rank",
        "marks of other ranks forgotten",
        "a header-only packet clears nothing",
        "a result of an older chunk taken",
        "asks of the chunk before",
        "last row written whole",
        "access not asked",
        "chunk not compared",
    ],
)
def test_finds_a_planted_bug(
    target: str, file: str, right: str, wrong: str, leaks: str, codecs: dict[str, Path], tmp_path: Path
) -> None:
    status, said = search(build(target, planted(tmp_path, file, right, wrong), tmp_path, codecs), leaks, 120)
    assert status != 0, "not found"
    assert "not so" in said or "ERROR: AddressSanitizer" in said or "runtime error" in said


def test_seeds_can_be_written_by_hand(tmp_path: Path) -> None:
    for target in SOURCES:
        folder = tmp_path / target
        folder.mkdir()
        subprocess.run([sys.executable, fuzz_seeds.__file__, target, str(folder)], check=True, timeout=300)
        assert len(list(folder.iterdir())) >= 16
