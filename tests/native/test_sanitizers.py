"""The conformance tests, a RoCEv2 peer and small worlds of the packet engine, over a C core with AddressSanitizer and
UBSan, alignment included. In these worlds other builds do what the shipped one does, event for event.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from switchagg.native.library import missing
from tests.native.core_sources import CORE, ROOT, planted, source, sources

pytestmark = pytest.mark.long

# SA_NO_CLONES: the loader chooses among clones before the sanitizers are ready.
FLAGS = ["-std=gnu11", "-O1", "-g", "-DSA_NO_CLONES", "-fsanitize=address,undefined,float-cast-overflow"]
SEEDS = 4
WORLDS = 80


@pytest.fixture(scope="module")
def asan() -> str:
    """Path of the runtime that must be in the process before Python's own libraries. Skips where there is none."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc, for the sanitizers")
    found = subprocess.run(
        [gcc, "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=20
    ).stdout.strip()
    if not os.path.isabs(found):
        pytest.skip("needs libasan (it comes with Debian's gcc)")
    return found


def compile_piece(source: Path, folder: Path) -> Path:
    """One source as an object file in `folder`."""
    made = folder / f"{source.stem}.o"
    command = ["gcc", "-c", "-fPIC", *FLAGS, "-fno-sanitize-recover=all", f"-I{CORE}", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def pieces(asan: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The core's sources, compiled once, on all processors; by name, without the suffix."""
    folder = tmp_path_factory.mktemp("sanitized")
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        return {made.stem: made for made in compilers.map(lambda source: compile_piece(source, folder), sources())}


def linked(pieces: Iterable[Path], folder: Path) -> Path:
    """A library of these objects."""
    library = folder / "libswitchagg.so"
    command = ["gcc", "-shared", *FLAGS, *map(str, pieces), "-lm", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="module")
def library(pieces: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked(pieces.values(), tmp_path_factory.mktemp("library"))


def run_over(library: Path | None, asan: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of Python over this library; None: the shipped one."""
    environment = {
        **os.environ,
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps much until its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
    } | ({} if library is None else {"SWITCHAGG_NATIVE": str(library)})
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace"
    )


VECTORS = ROOT / "tests/conformance/test_vectors.py"
TRAFFIC = ROOT / "tests/conformance/test_random_traffic.py"
CONFORMANCE = (
    VECTORS,
    TRAFFIC,
    ROOT / "tests/conformance/test_endpoint_lockstep.py",
    ROOT / "tests/switchagg/codecs/test_exact.py",
    ROOT / "tests/switchagg/native/test_native_endpoint.py",
    ROOT / "tests/switchagg/native/test_plane.py",
    ROOT / "tests/transport/switch/test_native_queue.py",
    ROOT / "tests/transport/switch/test_native_impair.py",
    ROOT / "tests/transport/collectives/test_native_execution.py",
    ROOT / "tests/transport/rdma/test_peer.py",
)


def conformance(library: Path, asan: str, *tests: Path) -> subprocess.CompletedProcess[str]:
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--capture=sys",
        "-k",
        "(native or endpoint or plane or peer) and not frequent and not scripts_reach"  # statistics
        " and not 64-3-50-float and not 64-3-50-int64 and not 2-8-2000-int64",  # seconds of the Python core
        f"--seeds={SEEDS}",
    ]
    return run_over(library, asan, "-m", "pytest", *options, *map(str, tests))


def test_conformance_under_sanitizers(library: Path, asan: str) -> None:
    done = conformance(library, asan, *CONFORMANCE)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "words", "test"),
    [
        (
            "write_values(sums, values, count);",
            "write_values(sums, values, count + 64);",
            "heap-buffer-overflow",
            VECTORS,
        ),
        ("memcpy(&value, from, sizeof value);", "value = *(const uint32_t *)from;", "misaligned address", TRAFFIC),
    ],
)
def test_sanitizers_find_a_planted_bug(
    right: str, wrong: str, words: str, test: Path, pieces: dict[str, Path], asan: str, tmp_path: Path
) -> None:
    wrong_plane = compile_piece(source("plane.c", planted(tmp_path, "plane.c", right, wrong)), tmp_path)
    done = conformance(linked((pieces | {"plane": wrong_plane}).values(), tmp_path), asan, test)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


# ---- the packet engine

SIMULATED = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
PROGRAM = str(Path(__file__).with_name("engine_worlds.py"))


@pytest.fixture(scope="module")
def shipped() -> str:
    """What the shipped engine does in the small worlds."""
    done = run_over(None, "", PROGRAM, "0", str(WORLDS))
    assert done.returncode == 0, done.stderr
    return done.stdout


@SIMULATED
def test_the_packet_engine_under_sanitizers(library: Path, asan: str, shipped: str) -> None:
    *_, last = shipped.splitlines()
    counted = {name: int(count) for name, count in (word.split("=") for word in last.split())}
    assert all(counted[name] > 20 for name in ("drop_queue", "lost", "duplicated", "held_back", "corrupted", "marked"))
    assert min(counted["failed"], counted["again"]) > 5
    done = run_over(library, asan, PROGRAM, "0", str(WORLDS))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == shipped


@SIMULATED
@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang, as another compiler")
def test_another_compiler_makes_the_same_events(shipped: str, tmp_path: Path) -> None:
    flags = ["-std=gnu11", "-O0", "-fPIC", "-ffp-contract=off", "-shared", f"-I{CORE}"]
    library = tmp_path / "libswitchagg.so"
    built = subprocess.run(["clang", *flags, *map(str, sources()), "-lm", "-o", str(library)], capture_output=True)
    assert built.returncode == 0, built.stderr.decode()
    assert run_over(library, "", PROGRAM, "0", str(WORLDS)).stdout == shipped


@SIMULATED
@pytest.mark.parametrize(
    ("file", "right", "wrong", "words"),
    [
        ("link.c", "body->holders++;", "", "use-after-poison"),
        ("compile.c", "malloc((2 * places + compiler->nodes + 1)", "malloc((2 * places + 1)", "overflow"),
    ],
)
def test_sanitizers_find_a_bug_of_the_packet_engine(
    file: str, right: str, wrong: str, words: str, pieces: dict[str, Path], asan: str, tmp_path: Path
) -> None:
    piece = compile_piece(source(file, planted(tmp_path, file, right, wrong)), tmp_path)
    done = run_over(linked((pieces | {piece.stem: piece}).values(), tmp_path), asan, PROGRAM, "0", str(WORLDS))
    assert done.returncode != 0
    assert words in done.stderr
