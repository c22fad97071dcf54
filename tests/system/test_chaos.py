"""`switchagg chaos` with a fixed seed: what it finds, what it writes, and that it leaves nothing, also after Ctrl-C."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch_forks import Forked

from emulation.experiments.chaos.chaos_options import ChaosOptions
from emulation.experiments.chaos.event_schedule import first_events

pytestmark = pytest.mark.system

COMMAND = [
    "-m",
    "emulation.cli.main",
    "chaos",
    "--workers",
    "2",
    "--fallback",
    "ring",
    "--gap",
    "0.2",
    "--steps",
    "20",
    "--lease",
    "2",
]
LIMIT_S = 240.0


def folders() -> set[str]:
    return {path.name for path in Path("/tmp").glob("switchagg-chaos-*")}


def test_events_of_a_seed_come_as_they_should_and_leave_nothing(requires_root_namespaces: None, tmp_path: Path) -> None:
    kinds = "worker-kill,switch-kill,link-flap,forged-packets"
    words = [*COMMAND, "--seed", "5", "--events", "4", "--kinds", kinds, "--report", str(tmp_path)]
    process = Forked([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, f"{out}\n{errors}"
    document = json.loads((tmp_path / "chaos.json").read_text())
    options = ChaosOptions(
        5, workers=2, fallback="ring", gap_s=0.2, lap_steps=20, lease_s=2.0, events=4, kinds=tuple(kinds.split(","))
    )
    schedule = [event._asdict() for event in first_events(options, 4)]
    assert [{name: event[name] for name in schedule[0]} for event in document["events"]] == schedule
    assert document["sums_checked"] >= 14 * document["steps"] > 14 * 20
    for count in ("wrong_sums", "hangs", "not_as_expected", "leftovers"):
        assert document[count] == []
        assert f"{count.replace('_', ' ')}: 0" in out
    assert out == (tmp_path / "chaos.txt").read_text()


def test_an_interrupt_removes_all(requires_root_namespaces: None) -> None:
    before = folders()
    words = [*COMMAND, "--kinds", "worker-pause,link-cut"]
    process = Forked([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(LIMIT_S, process.kill)
    guard.start()
    try:
        assert process.stderr is not None
        lines = iter(process.stderr)
        assert any("event 0" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest = "".join(lines)
    finally:
        guard.cancel()
    assert process.wait(LIMIT_S) == 130
    assert "everything it had started is stopped" in rest
    assert folders() == before
