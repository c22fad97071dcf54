"""udp.c over a kernel that fails at random, under the sanitizers; and bugs that this must find. See udp_faults.c."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native.core_sources import CORE, ROOT, planted

SEEDS = 60
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
FLAGS += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build(core: Path, folder: Path) -> Path:
    """Compile the program; skips without a compiler that has the sanitizers."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    if subprocess.run([compiler, *FLAGS, "empty.c", "-o", "empty"], cwd=folder, capture_output=True).returncode:
        pytest.skip("needs the sanitizers of the C compiler (Debian: libasan, libubsan)")
    source = ROOT / "tests/native/udp_faults.c"
    done = subprocess.run(
        [compiler, *FLAGS, f"-I{core}", str(source), "-o", str(folder / "udp_faults")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "udp_faults"


def failure(program: Path, seed: int) -> str:
    """The error of this seed, or ""."""
    try:
        done = subprocess.run([str(program), str(seed)], capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return f"seed {seed}: not so: it ends"
    return f"seed {seed}: {done.stderr[-2000:]}" if done.returncode else ""


def first_failure(program: Path) -> str:
    """The error of the first seed that fails; "" if none does. A few seeds at a time, one per processor."""
    at_once = os.cpu_count() or 1
    with ThreadPoolExecutor(at_once) as runs:
        for first in range(0, SEEDS, at_once):
            seeds = range(first, min(first + at_once, SEEDS))
            if found := [said for said in runs.map(lambda seed: failure(program, seed), seeds) if said]:
                return found[0]
    return ""


def test_every_loss_is_counted_and_bundles_are_split_correctly(tmp_path: Path) -> None:
    assert first_failure(build(CORE, tmp_path)) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    udp->state.gso = 0;\n", ""),
        ("return is_full(udp, plain) ? 0 : lose(udp, message, rows, plain);", "return lose(udp, message, 1, plain);"),
        ("    if (is_full(udp, error)) return 0;\n", ""),
        ("udp->counters[SA_UDP_SEND_ERRORS] += rows;", "udp->counters[SA_UDP_SEND_ERRORS] += 1;"),
        ("messages[from].accepted == messages[from].rows", "messages[from].accepted"),
        ("pieces[count - 1].iov_len += message->size;", "pieces[count - 1].iov_len += 4;"),
        ("(message->trailers + at * ", "(message->trailers + row * "),
        ("uint32_t rest = size ? size % segment : 0;", "uint32_t rest = 0;"),
        ("    message->msg_hdr.msg_controllen = sizeof udp->receive_controls[at];\n", ""),
        ("+= (uint32_t)value - udp->overflow_seen;", "+= (uint32_t)value;"),
        ("if (udp->options.priority) used", "if (udp && rows > 1) used"),
    ],
    ids=[
        "gso kept after its refusal",
        "a plain datagram that finds no room is lost",
        "no room is loss",
        "a lost bundle counted once",
        "the rest of a message skipped",
        "scattered frames joined wrongly",
        "trailers of the message's first rows",
        "a shorter last datagram not taken",
        "control buffer used up",
        "overflow counted again and again",
        "priority said where the kernel knows none",
    ],
)
def test_a_planted_bug_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    assert "not so" in first_failure(build(planted(tmp_path, "udp.c", right, wrong), tmp_path))
