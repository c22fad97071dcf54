"""The methods of a scenario in virtual time, side by side: a process each, as many at once as there are cores.

The processes are forked from one that has loaded PyTorch. Their results are those of methods that run alone, byte for
byte: nothing in them depends on what else runs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from emulation.experiments.pool import cores
from emulation.results.results import MethodResult
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.testbed.children import POLL_S, Child, ChildListener, ChildReport, send_report
from emulation.testbed.nursery import Nursery
from transport.group.method_name import MethodName

END_S = 5.0
"""How long a process may take to end after its last word."""

Progress = Callable[[str, int, int, str], None]


class MethodProgress(ChildReport):
    """As a `Progress` takes it."""

    done: int
    total: int
    note: str


class MethodEnded(ChildReport):
    """outcome: what a call returned or raised, pickled."""

    outcome: bytes


def run_method(scenario: Scenario, method: MethodName, out_dir: Path, progress: Callable[..., None]) -> MethodResult:
    """One method, in this process; see `emulation.sim.simulated_run`."""
    from emulation.sim import simulated_run

    return simulated_run.run_method(scenario, method, out_dir, progress)


def run_methods(
    scenario: Scenario,
    methods: Sequence[MethodName],
    folder: Path,
    progress: Progress,
    nursery: Nursery | None = None,
) -> list[tuple[MethodResult, float]]:
    """All methods, each result with the seconds that it took. nursery: which has loaded, or loads, PyTorch.

    Raises what `simulated_run.run_method` raises, and RunFailed if a process is killed. Leaves nothing running.
    """
    workload = scenario.workload
    with Nursery([] if workload.profile else ["torch"]) if nursery is None else contextlib.nullcontext(nursery) as fork:
        fork.load([f"{__name__}:{(_prepare if workload.profile else _prepare_training).__name__}"])
        compute_ns = 0
        if workload.compute_ns is None and not workload.profile:
            measure = partial(_measured, workload.name, workload.batch_per_worker, scenario.seed)
            ((compute_ns, _),) = _outcomes(fork, {"compute time": measure}, progress)
        calls = {str(method): partial(_run, scenario, method, folder / method.slug, compute_ns) for method in methods}
        return _outcomes(fork, calls, progress)


def _outcomes(nursery: Nursery, calls: Mapping[str, Callable[[], Any]], progress: Progress) -> list[tuple[Any, float]]:
    """What the calls return, each in a process of its own, with its seconds. Raises the first exception of one."""
    running: dict[str, tuple[Child[Any], float]] = {}
    outcomes: dict[str, tuple[Any, float]] = {}
    waiting = list(calls)
    while len(outcomes) < len(calls):
        while waiting and len(running) < cores():
            name = waiting.pop(0)
            running[name] = _start(nursery, name, calls[name]), time.monotonic()
        names = list(running)
        with ChildListener([running[name][0] for name in names]) as listener:
            reports = listener.hear(POLL_S)
        for place, report in reports:
            name = names[place]
            if isinstance(report, MethodProgress):
                progress(name, report.done, report.total, report.note)
                continue
            outcome = pickle.loads(report.outcome)
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes[name] = outcome, time.monotonic() - running[name][1]
        for child, _ in list(running.values()):
            if child.ended or child.name in outcomes:
                status = child.process.wait(END_S)
                if child.name not in outcomes:
                    ended = f"was killed by {child.killed_by}" if child.killed_by else f"ended with status {status}"
                    raise RunFailed(f"{child.name} in virtual time: its process {ended}")
                del running[child.name]
    return [outcomes[name] for name in calls]


def _start(nursery: Nursery, name: str, call: Callable[[], Any]) -> Child[Any]:
    log = open(2, "wb", closefd=False)  # noqa: SIM115  # what it warns of is for our user
    process = nursery.start(f"{__name__}:_serve", "", {}, log)
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(pickle.dumps(call))
    return Child(name, cast("subprocess.Popen[bytes]", process), MethodProgress | MethodEnded, log)


# ---- the process's side


def _prepare() -> None:
    from emulation.sim import simulated_run  # noqa: F401


def _prepare_training() -> None:
    from emulation.workloads import tensor_ranks  # noqa: F401

    _prepare()


def _measured(name: str, batch_per_worker: int, seed: int) -> int:
    from emulation.sim import simulated_run

    return simulated_run.measured_compute_ns(name, batch_per_worker, seed)


def _run(scenario: Scenario, method: MethodName, out_dir: Path, compute_ns: int) -> MethodResult:
    from emulation.sim import simulated_run

    def tell(done: int, total: int, note: str) -> None:
        send_report(MethodProgress(done, total, note))

    return simulated_run.run_method(scenario, method, out_dir, tell, compute_ns)


def _serve(_: str) -> NoReturn:
    """The whole life of a process: a call that comes on stdin, and its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us ends us
    call = pickle.load(sys.stdin.buffer)
    try:
        outcome = call()
    except Exception as error:
        error.add_note(f"In the process of a method:\n{traceback.format_exc()}")
        outcome = error
    send_report(MethodEnded(pickle.dumps(outcome)))
    os._exit(0)  # taking torch down takes half a second
