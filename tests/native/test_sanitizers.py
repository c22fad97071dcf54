"""The conformance tests, and a RoCEv2 peer, over a C core with AddressSanitizer and UBSan, alignment included."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from native.core_sources import CORE, ROOT, planted, source, sources

# SA_NO_CLONES: the loader chooses among clones before the sanitizers are ready.
FLAGS = ["-std=gnu11", "-O1", "-g", "-DSA_NO_CLONES", "-fsanitize=address,undefined,float-cast-overflow"]
SEEDS = 12


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


def run_over(pieces: Iterable[Path], asan: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Link a library of these objects, run the conformance tests over it."""
    library = folder / "libswitchagg.so"
    command = ["gcc", "-shared", *FLAGS, *map(str, pieces), "-lm", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tests = [
        *(ROOT / f"tests/conformance/test_{piece}.py" for piece in ("vectors", "random_traffic", "endpoint_lockstep")),
        *(
            ROOT / f"tests/{piece}.py"
            for piece in (
                "core/test_native_endpoint",
                "switch/test_native_queue",
                "switch/test_native_impair",
                "groups/test_native_execution",
            )
        ),
        Path(__file__).with_name("test_plane.py"),
        ROOT / "tests/rdma/test_peer.py",
    ]
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--capture=sys",
        "-k",
        "(native or endpoint or plane or peer) and not frequent and not scripts_reach",  # statistics
        f"--seeds={SEEDS}",
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": asan,
        "SWITCHAGG_NATIVE": str(library),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps much until its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, tests)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
    )


def test_conformance_under_sanitizers(pieces: dict[str, Path], asan: str, tmp_path: Path) -> None:
    done = run_over(pieces.values(), asan, tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("write_values(sums, values, count);", "write_values(sums, values, count + 64);", "heap-buffer-overflow"),
        ("memcpy(&value, from, sizeof value);", "value = *(const uint32_t *)from;", "misaligned address"),
    ],
)
def test_sanitizers_find_a_planted_bug(
    right: str, wrong: str, words: str, pieces: dict[str, Path], asan: str, tmp_path: Path
) -> None:
    wrong_plane = compile_piece(source("plane.c", planted(tmp_path, "plane.c", right, wrong)), tmp_path)
    done = run_over((pieces | {"plane": wrong_plane}).values(), asan, tmp_path)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
