"""`switchagg chaos` with a fixed seed: what it finds, what it writes, and that it leaves nothing, also after Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from torch_forks import Forked

from emulation.experiments.chaos.chaos_options import NAMESPACES, ChaosOptions
from emulation.experiments.chaos.event_schedule import first_events

pytestmark = pytest.mark.system

WORDS = "chaos --workers 2 --fallback ring --gap 0.2 --steps 20 --lease 2"
COMMAND = [sys.executable, "-m", "emulation.cli.main", *WORDS.split()]
LIMIT_S = 400.0


def begin(folder: Path, *words: str) -> Any:
    """A run whose files of the moment are in this folder."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    return Forked([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_an_elastic_job_meets_the_events_of_a_seed_and_leaves_nothing(
    requires_root_namespaces: None, tmp_path: Path
) -> None:
    kinds = "worker-kill,switch-kill,link-flap,forged-packets"
    process = begin(
        tmp_path, "--elastic", "--seed", "140", "--events", "4", "--kinds", kinds, "--report", str(tmp_path)
    )
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, f"{out}\n{errors}"
    report = json.loads((tmp_path / "chaos.json").read_text())
    options = ChaosOptions(
        *(140, 600.0, 2, "switch", NAMESPACES, 4, "ring", 0, tuple(kinds.split(",")), 2.0, 20, 0.2), elastic=True
    )
    schedule = [event._asdict() for event in first_events(options, 4)]
    assert [{name: event[name] for name in schedule[0]} for event in report["events"]] == schedule
    assert {event["outcome"] for event in report["events"] if event["kind"] == "worker-kill"} == {"cost a step"}
    assert report["sums_checked"] > 7 * report["steps"] > 7 * 20
    assert report["laps_compared"] == report["laps"] > 0
    for count in ("wrong_sums", "hangs", "not_as_expected", "leftovers"):
        assert report[count] == []
        assert f"{count.replace('_', ' ')}: 0" in out
    assert out == (tmp_path / "chaos.txt").read_text()


@pytest.mark.parametrize("words", [["--kinds", "worker-kill"], ["--elastic", "--kinds", "worker-kill,link-cut"]])
def test_an_interrupt_removes_all(requires_root_namespaces: None, tmp_path: Path, words: list[str]) -> None:
    process = begin(tmp_path, *words)
    guard = threading.Timer(LIMIT_S, process.kill)
    guard.start()
    try:
        lines = iter(process.stderr)
        assert any("event 0" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest = "".join(lines)
    finally:
        guard.cancel()
    assert process.wait(LIMIT_S) == 130
    assert "everything it had started is stopped" in rest
    assert list(tmp_path.glob("switchagg-*")) == []
