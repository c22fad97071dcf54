"""Real training in Mininet, in turn, while another program is busy beside one of the methods: no false headline."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation.experiments.compare import compare, problems
from emulation.report import wording
from emulation.results.speedups import resolved
from emulation.scenario.scenario import parse

BURN_S = 120
SCENARIO = """
name = "disturbed"
title = "Two workers beside another program"
[methods]
mininet = ["gloo", "switch"]
[topology]
workers = 2
[workload]
name = "digits"
iterations = 18
warmup_iterations = 2
evaluate_every = 18
blocks = 4
"""


@pytest.fixture
def burn() -> Iterator[Callable[[bool], None]]:
    """Lets other programs compute, or stops them. They are no children of ours, as those of another user aren't; after
    so much CPU time the kernel ends them, whatever happens here."""
    loop = "setsid nice -n 10 sh -c 'echo $$; exec >&-; while :; do :; done' &\n"
    script = f"ulimit -t {BURN_S}\n" + loop * 2 * (os.cpu_count() or 1)
    started = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    pids = [int(line) for line in started.stdout.split()]

    def let(compute: bool) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT if compute else signal.SIGSTOP)

    let(False)
    yield let
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.alone
@pytest.mark.system
@pytest.mark.usefixtures("requires_mininet")
def test_a_program_that_is_busy_beside_one_method_makes_no_speed_up(
    tmp_path: Path, burn: Callable[[bool], None]
) -> None:
    """It computes whenever Gloo has its turn, at the ranks' priority, so that those get a third of the CPUs."""

    def progress(method: str, done: int, _total: int, _note: str) -> None:
        burn(method == "gloo" and done > 0)

    built = compare(parse(SCENARIO, "t"), "mininet", tmp_path, progress, command=["x"]).document
    gloo, switch = built["methods"]
    busy = [each["certificate"]["measures"]["cpu_other_share"] for each in (gloo, switch)]
    assert busy[0] > busy[1]
    compared, quoted = switch["comparison"], switch["comparison"]["headline"]
    assert compared["compute_ratio"] < 1 / 1.1, "it takes the CPU from Gloo's ranks"
    assert built["verdict"] in ("DISTURBED", "INVALID")
    assert quoted["at_equal_compute"]
    assert quoted["speedup"] in (None, compared["iteration_speedup_at_equal_compute"])
    assert quoted["speedup"] is None or len(quoted["interval"]) == 2
    assert wording.times_text(compared["iteration_speedup"]) not in wording.finding(built)
    assert resolved(quoted["interval"]) or "beyond noise" in wording.finding(built)
    (told,) = [text for text in problems(built) if "Ranks computed for" in text]
    others = told.partition("Other programs had of the CPUs' time: with Gloo ")[2]
    assert "sh " in others.partition("with the switch")[0], "by name"
