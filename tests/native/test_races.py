"""The loops in C, called by other threads, and simulations in partitions, under ThreadSanitizer; and races that this
must find. See stress_loops.c."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native.core_sources import CODECS, CORE, ROOT, planted, source, sources

pytestmark = pytest.mark.long

SOURCES = (
    "switch",
    "switch_hops",
    "hop",
    "queue",
    "impair",
    "timeline",
    "directory",
    "udp",
    "tag",
    "mask",
    "endpoint",
    "verified_sums",
    "partial_sums",
    "window",
    "call",
    "small_call",
)
SOURCES += ("plane", *(name.removesuffix(".c") for name in CODECS))
# The sanitizer can't see code that is chosen while the program is loaded, before it runs itself.
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DSA_NO_CLONES", "-fsanitize=thread"]


def compiled(folder: Path, *arguments: str) -> None:
    """The compiler with its sanitizer, run in a folder; skips without one."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    done = subprocess.run([compiler, *FLAGS, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All that no bug is planted in, compiled once; skips without the sanitizer."""
    folder = tmp_path_factory.mktemp("races")
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    try:
        compiled(folder, "empty.c", "-o", "empty")
        subprocess.run([folder / "empty"], capture_output=True, check=True)
    except (AssertionError, subprocess.CalledProcessError):
        pytest.skip("needs ThreadSanitizer of the C compiler (Debian: libtsan), and a kernel on which it runs")
    compiled(folder, f"-I{CORE}", "-c", *(str(source(f"{name}.c")) for name in SOURCES))
    return [str(path) for path in folder.glob("*.o")]


def build(core: Path, folder: Path, objects: list[str], *flags: str) -> Path:
    sources = [str(ROOT / "tests/native/stress_loops.c"), str(source("worker.c", core))]
    compiled(folder, *flags, f"-I{core}", *sources, *objects, "-lpthread", "-lm", "-o", "stress_loops")
    return folder / "stress_loops"


def fault(program: Path, calls: int, pause_us: int) -> str:
    """The error that a run prints; "" if none."""
    done = subprocess.run(
        [str(program), str(calls), str(pause_us)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
    )
    return done.stderr[-4000:] if done.returncode else ""


def test_no_wake_up_is_lost_and_nothing_is_shared_unguarded(objects: list[str], tmp_path: Path) -> None:
    program = build(CORE, tmp_path, objects)
    for pause_us in (0, 200):
        assert fault(program, 2000, pause_us) == "", f"pause {pause_us} us"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "    pthread_mutex_lock(&worker->lock);\n"
            "    int result = append(&worker->submitted, submission);\n"
            "    pthread_mutex_unlock(&worker->lock);\n",
            "    int result = append(&worker->submitted, submission);\n",
            "data race",
        ),
        ("    atomic_store(&worker->sleeping, true);\n    int reasons", "    int reasons", "it hangs"),
        ("    if (pthread_mutex_trylock(&worker->loop_mutex)) return SA_BUSY;\n", "", "data race"),
    ],
    ids=["unguarded", "asleep unnoticed", "two at once"],
)
def test_races_are_found(objects: list[str], tmp_path: Path, right: str, wrong: str, said: str) -> None:
    program = build(planted(tmp_path, "worker.c", right, wrong), tmp_path, objects, "-DLOOKS_MOST=8000")
    # One run may have the luck that no two threads meet in the gap, another meets the wrong unlock that follows.
    assert any(said in fault(program, 2000, 0) for _ in range(20))


@pytest.fixture(scope="module")
def pieces(objects: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All of the shared library, compiled once, by name."""
    folder = tmp_path_factory.mktemp("library")
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        list(compilers.map(lambda path: compiled(folder, f"-I{CORE}", "-fPIC", "-c", str(path)), sources()))
    return {path.stem: path for path in folder.glob("*.o")}


def simulated(pieces: Iterable[Path], folder: Path) -> str:
    """The error of simulations in racks, on three threads, over a library of these objects; "" if none."""
    compiled(folder, "-shared", *map(str, pieces), "-lpthread", "-lm", "-o", "library.so")
    runtime = subprocess.run(["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulation.sim.test_partitions"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "LD_PRELOAD": runtime.stdout.strip(),
            "SWITCHAGG_SIM_THREADS": "3",
            "SWITCHAGG_NATIVE": str(folder / "library.so"),
            "TSAN_OPTIONS": "halt_on_error=1",
        },
    )
    return done.stderr[-4000:] if done.returncode else ""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, whose runtime is loaded before Python's libraries")
def test_partitions_of_a_simulation_share_nothing_within_a_window(pieces: dict[str, Path], tmp_path: Path) -> None:
    assert simulated(pieces.values(), tmp_path) == ""
    wrong = tmp_path / "wrong"
    shared = "if (!(body = sim_body_own(&sim->pool, body)))"  # of a result that several partitions get
    core = planted(wrong, "partitions.c", shared, "if (!body)")
    compiled(wrong, f"-I{core}", "-fPIC", "-c", str(source("partitions.c", core)))
    assert "data race" in simulated({**pieces, "partitions": wrong / "partitions.o"}.values(), wrong)
