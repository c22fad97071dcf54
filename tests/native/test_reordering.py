"""RC queue pairs over links that reorder: what is sent again stays in proportion to what is sent, in virtual time.

See reordered_qp.c. A build that holds no packets is the peer that the specification describes: it drops what overtakes.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.core_sources import CORE, ROOT, source

PACKETS = 4096
SEEDS = 40
FILES = ("qp.c", "qp_request.c", "qp_respond.c", "qp_reorder.c", "roce.c", "roce_crc.c", "dcqcn.c", "rdma_memory.c")
STRICT = ("-DSA_REORDER_PACKETS=1u", "-DSA_REORDER_MOST_NS=0", "-DSA_REORDER_AGAIN_NS=0")


def build(folder: Path, *options: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = folder / "reordered_qp"
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-DSA_NO_CLONES", *options, f"-I{CORE}"]
    command += [str(ROOT / "tests/native/reordered_qp.c"), *(str(source(name)) for name in FILES), "-lm"]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def most_sent_again(program: Path, jitter_ns: int, loss_ppm: int) -> int:
    """Packets, of the worst seed; every run delivers all."""
    done = subprocess.run([str(program), str(SEEDS), str(jitter_ns), str(loss_ppm)], capture_output=True, text=True)
    assert done.returncode == 0, f"after {done.stdout}: {done.stderr}"
    return max(int(line.split()[0]) for line in done.stdout.splitlines())


def test_reordering_makes_no_storm(tmp_path: Path) -> None:
    """±1 ms had each packet sent 140 times."""
    program = build(tmp_path)
    for jitter_ns in (1_000, 30_000, 1_000_000):
        assert most_sent_again(program, jitter_ns, 0) < PACKETS / 4
        assert most_sent_again(program, jitter_ns, 10_000) < PACKETS / 2
    assert most_sent_again(program, 0, 10_000) < PACKETS / 4


def test_a_peer_that_holds_nothing_makes_no_storm(tmp_path: Path) -> None:
    program = build(tmp_path, *STRICT)
    for jitter_ns in (1_000, 30_000, 1_000_000):
        assert most_sent_again(program, jitter_ns, 0) < 3 * PACKETS
