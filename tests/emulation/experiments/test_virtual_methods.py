"""Methods in processes of their own, side by side: the same results, their words, their errors, their ends."""

import os
import signal
import time
from pathlib import Path

import pytest

from emulation.experiments import virtual_methods
from emulation.experiments.virtual_methods import run_method, run_methods
from emulation.results.results import document, plain
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, parse
from emulation.testbed.nursery import Nursery

TEXT = (
    'name = "tiny"\ntitle = "Tiny"\nseed = 5\n[methods]\nsim = ["ring", "switch", "halving_doubling"]\n'
    "[topology]\nworkers = 2\nrate_bps = 1_000_000_000\n"
    '[workload]\nname = "digits"\niterations = 3\nwarmup_iterations = 1\nbatch_per_worker = 8\ncompute_ns = 5_000_000\n'
)


def scenario(**settings: object) -> Scenario:
    return parse(TEXT, "tiny.toml", {key.replace("__", "."): value for key, value in settings.items()})


def silent(*_: object) -> None:
    pass


def test_methods_side_by_side_give_what_each_gives_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_methods, "cores", lambda: 2)
    tiny, words = scenario(), []
    together = run_methods(tiny, tiny.methods_for("sim"), tmp_path, lambda *said: words.append(said))
    alone = [run_method(tiny, method, tmp_path, silent) for method in tiny.methods_for("sim")]
    assert plain(document(tiny, "sim", [result for result, _ in together])) == plain(document(tiny, "sim", alone))
    assert [result.timeline for result, _ in together] == [result.timeline for result in alone]
    for method in ("ring", "switch", "halving_doubling"):
        assert [done for name, done, *_ in words if name == method] == [0, 1, 2, 3]


def test_the_compute_time_of_all_methods_is_measured_once(tmp_path: Path) -> None:
    tiny = parse(TEXT.replace("compute_ns = 5_000_000\n", ""), "tiny.toml")
    results = [result for result, _ in run_methods(tiny, tiny.methods_for("sim")[:2], tmp_path, silent)]
    first, second = ([note for note in result.notes if "was measured once" in note] for result in results)
    assert first == second != []


def test_an_error_of_a_method_is_raised_here(tmp_path: Path) -> None:
    tiny = scenario(faults__loss=0.4, switch__retry_limit=1)
    with pytest.raises(RunFailed, match="switch in virtual time: "):
        run_methods(tiny, tiny.methods_for("sim")[1:2], tmp_path, silent)


def test_a_killed_process_is_a_failed_run_and_nothing_is_left(tmp_path: Path) -> None:
    tiny = scenario(workload__iterations=100_000)
    with Nursery([]) as nursery:

        def kill(name: str, done: int, *_: object) -> None:
            if done:
                pids.extend(process.pid for process in nursery.processes)
                os.kill(pids[0], signal.SIGKILL)

        pids: list[int] = []
        with pytest.raises(RunFailed, match="in virtual time: its process was killed by SIGKILL"):
            run_methods(tiny, tiny.methods_for("sim"), tmp_path, kill, nursery)
    end_s = time.monotonic() + 20.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s
        time.sleep(0.02)
