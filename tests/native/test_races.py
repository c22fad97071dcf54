"""The loops in C under ThreadSanitizer, called by other threads; and races that this must find. See stress_loops.c."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.core_sources import CODECS, CORE, ROOT, planted, source

SOURCES = (
    "worker",
    "switch",
    "queue",
    "impair",
    "timeline",
    "directory",
    "udp",
    "endpoint",
    "window",
    "call",
    "small_call",
)
SOURCES += ("plane", *(name.removesuffix(".c") for name in CODECS))
# The sanitizer can't see code that is chosen while the program is loaded, before it runs itself.
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-DSA_NO_CLONES", "-fsanitize=thread"]


def build(core: Path, folder: Path, *flags: str) -> Path:
    """Compile the program; skips without a compiler that has the sanitizer."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    made = subprocess.run([compiler, *FLAGS, "empty.c", "-o", "empty"], cwd=folder, capture_output=True, check=False)
    if made.returncode or subprocess.run([folder / "empty"], capture_output=True, check=False).returncode:
        pytest.skip("needs ThreadSanitizer of the C compiler (Debian: libtsan), and a kernel on which it runs")
    sources = [ROOT / "tests/native/stress_loops.c", *(source(f"{name}.c", core) for name in SOURCES)]
    program = folder / "stress_loops"
    done = subprocess.run(
        [compiler, *FLAGS, *flags, f"-I{core}", *map(str, sources), "-lpthread", "-lm", "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return program


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


def test_no_wake_up_is_lost_and_nothing_is_shared_unguarded(tmp_path: Path) -> None:
    program = build(CORE, tmp_path)
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
def test_races_are_found(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    program = build(planted(tmp_path, "worker.c", right, wrong), tmp_path, "-DLOOKS_MOST=8000")
    # One run may have the luck that no two threads meet in the gap.
    found = next(filter(None, (fault(program, 2000, 0) for _ in range(20))), "")
    assert said in found
