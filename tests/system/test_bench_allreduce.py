"""The benchmark for real: three ranks on shaped links, every method, and what is left when something ends badly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from emulation.testbed.mininet.services import switchagg_command

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

BENCH = switchagg_command("bench", "allreduce")


def bench(*arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def test_a_table_with_exact_sums_for_every_method(tmp_path: Path) -> None:
    done = bench(
        *("--workers", "3", "--rate", "100M", "--sizes", "4,4K,100KB", "-n", "3", "--json", str(tmp_path / "b.json")),
        *("--methods", "switch:reference,gloo:cubic,ring", "--congestion-control", "cubic", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 9
    assert [line.split()[0] for line in lines] == ["4"] * 3 + ["4096"] * 3 + ["100000"] * 3
    built = json.loads((tmp_path / "b.json").read_text())
    assert built["schema"] == "switchagg-bench-2"
    (network,) = built["parts"]["allreduce"]
    assert network["failures"] == {}
    assert {port["rate_bps"] for port in network["network"]["ports"]} == {100_000_000}
    assert network["methods"]["gloo:cubic"]["congestion_control"] == "cubic"
    rows: dict[Any, Any] = {(row["name"], row["size_bytes"]): row for row in network["rows"]}
    for row in rows.values():
        assert row["wrong_elements"] == 0
        assert row["time_ns"]["count"] == 3
    # counted on the wire: the array once through the switch, 2(n-1)/n times round the ring, and headers
    assert 100_000 < rows["switch:reference", 100_000]["wire_tx_bytes_per_rank"] < 125_000
    assert 133_333 < rows["ring:cubic", 100_000]["wire_tx_bytes_per_rank"] < 160_000
    assert (tmp_path / "allreduce.png").exists()


def test_unshaped_links_have_no_limit_and_are_counted(tmp_path: Path) -> None:
    words = ("--workers", "2", "--rate", "unshaped", "--sizes", "64K", "-n", "2", "--methods", "ring:reno")
    done = bench(*words, "--json", str(tmp_path / "b.json"))
    assert done.returncode == 0, done.stderr
    (network,) = json.loads((tmp_path / "b.json").read_text())["parts"]["allreduce"]
    assert {port["rate_bps"] for port in network["network"]["ports"]} == {0}
    assert network["network"]["notes"] == ["links are not shaped; their root qdisc is pfifo limit 10000, which counts"]
    (line,) = (line.split() for line in done.stdout.splitlines() if not line.startswith("#"))
    assert line[5] == "ring:reno"
    assert line[-3:-1] == ["-", "-"]
    assert 65_536 < int(line[-5]) < 80_000


def test_the_better_congestion_control_is_kept() -> None:
    done = bench("--workers", "2", "--rate", "500M", "--sizes", "4K", "-n", "1", "--methods", "ring")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[5] in ("ring:cubic", "ring:bbr") for row in rows] == [True]


def processes_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children] + [below for child in children for below in processes_below(int(child))]


def running_bench(*methods: str) -> subprocess.Popen[str]:
    """A running benchmark, at its first operations."""
    command = [*BENCH, "--workers", "2", "--rate", "100M", "--sizes", "16M", "--methods", ",".join(methods)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "16777216 bytes" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    return process


def test_an_interrupt_ends_every_process_it_started() -> None:
    process = running_bench("ring:cubic", "switch:reference")
    below = processes_below(process.pid)
    assert len(below) >= 5
    assert list(Path("/dev/shm").glob("switchagg-bench-*")) == []  # open in the ranks, and gone by name
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 130
    assert words.endswith("switchagg: interrupted; everything it had started is stopped\n")
    assert [pid for pid in below if os.path.exists(f"/proc/{pid}")] == []


def test_a_dead_rank_is_named_and_the_other_methods_continue() -> None:
    process = running_bench("ring:cubic")
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_below(process.pid)}
    ranks = [pid for pid, command in commands.items() if b"allreduce.allreduce_rank" in command]
    os.kill(ranks[1], signal.SIGKILL)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 1
    assert words.endswith("switchagg: n = 2, 100 Mb/s: ring:cubic: rank 1 was killed by SIGKILL\n")


def test_where_the_time_of_a_packet_goes() -> None:
    words = ("--workers", "2", "--size", "1MB", "--seconds", "0.3", "--functions", "3")
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench", "where", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "operations of 704 packets per worker" in done.stdout
    parts, per, functions = (block.splitlines()[1:] for block in done.stdout.split("\n\n"))
    assert any(line.startswith("switch rule ") for line in parts)
    assert parts[-1].startswith("all ")
    assert [line.split()[0] for line in per] == ["send", "receive", "sleep"]
    assert len(functions) == 3
