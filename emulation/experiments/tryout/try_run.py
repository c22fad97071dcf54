"""A trial of a user's script: a recording, a forecast from it, then the script by each method in turn, and its losses.

All methods' ranks stay while one of them has its turn, and wait between two steps, so that what else happens on the
machine meets all of them. The result is a document of plain values, `SCHEMA`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from emulation.experiments.progress_text import Passing
from emulation.experiments.tryout.try_comparison import (
    TurnPlan,
    compared,
    forecast_of,
    mean_losses,
    slowest_ns,
    step_summary,
    turn_plan,
)
from emulation.experiments.tryout.try_messages import GoOn, ScriptPlace, StepsDone
from emulation.experiments.tryout.try_rank import GLOO, NCCL, trace_path
from emulation.experiments.tryout.try_site import END_S, Report, Site
from emulation.experiments.whatif.gains import Question, gains
from emulation.experiments.whatif.recorded_run import RecordedRun, read
from emulation.results.results import Certificate
from emulation.scenario.bounds import NetworkParameters, bound_together
from emulation.scenario.errors import RunFailed
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.testbed.children import Child, ChildFailed, gather
from emulation.testbed.host import host_facts
from emulation.testbed.mininet.mininet_run import MEMORY_SHARE, in_turn
from switchagg.description import KINDS, Kind
from transport.group.method_name import parse

SCHEMA = "switchagg-try-1"
WARM_UP, RECORDED = 5, 10
"""Steps before the recording, and in it, after one more."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """What is tried. methods: the first one is the baseline. timeout_s: for a turn's steps, or for the ranks' start."""

    program: str
    arguments: tuple[str, ...]
    is_module: bool
    methods: tuple[str, ...]
    steps: int
    seed: int
    timeout_s: float
    delay_ns: int

    def place(self, plan: TurnPlan, method: str, workers: int) -> ScriptPlace:
        """Of a rank, whose number is still to be filled in."""
        words = (self.program, list(self.arguments), self.is_module)
        return ScriptPlace(0, workers, *words, method, self.seed, {}, list(plan.holds))


def run(trial: Trial, site: Site, folder: Path, say: Say) -> dict[str, Any]:
    """The document. Raises RunFailed in one line that names method and rank."""
    plan = turn_plan(trial.steps)
    run_recorded, forecast, why_no_forecast, peak_bytes = _forecast(trial, site, folder, say, plan)
    at_once = _methods_at_once(site.workers, peak_bytes)
    notes = []
    if at_once < len(trial.methods):
        notes.append("Memory has no room for the ranks of all methods: they ran one after the other, not in turn.")
    results: dict[str, MethodSteps] = {}
    for first in range(0, len(trial.methods), at_once):
        group = [
            MethodSteps(method, trial, site, plan, folder, say) for method in trial.methods[first : first + at_once]
        ]
        in_turn([method.turns() for method in group])
        results |= {method.name: method for method in group}
    rows = [_row(site.network, results[method], run_recorded, forecast, plan) for method in trial.methods]
    return {
        "schema": SCHEMA,
        "script": trial.program,
        "arguments": list(trial.arguments),
        "workers": site.workers,
        "place": site.name,
        "rate_bps": site.rate_bps,
        "steps": trial.steps,
        "seed": trial.seed,
        "blocks": plan.blocks,
        "in_turn": at_once >= len(trial.methods),
        "forecast": forecast,
        "why_no_forecast": why_no_forecast,
        "methods": rows,
        "comparisons": [compared(rows[0], row) for row in rows[1:]],
        "notes": notes,
        "host": host_facts(["switchagg", *sys.argv[1:]]),
    }


def _forecast(
    trial: Trial, site: Site, folder: Path, say: Say, plan: TurnPlan
) -> tuple[RecordedRun | None, dict[str, Any] | None, str, int]:
    """The recorded run, the document of `whatif`, or why there is none, and the most memory of a rank."""
    say(Passing(f"recording {RECORDED} steps of {trial.program} on {site.workers} ranks"))
    stem = (folder / "recording").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    place = trial.place(plan, trial.methods[0], site.workers)
    ranks = site.start(replace(place, holds=[], trace=str(stem), warmup=WARM_UP, recorded=RECORDED), folder / "logs")
    reports = _gather(ranks, trial.timeout_s, site)
    site.end(ranks)
    peak_bytes = max(report.peak_bytes for report in reports)
    traces = [path for rank in range(site.workers) if (path := trace_path(str(stem), rank)).exists()]
    try:
        recorded = read([str(path) for path in traces])
        if not site.rate_bps:
            return recorded, None, "the rate of the links is unknown", peak_bytes
        say(Passing(f"forecast: {len(trial.methods)} methods in virtual time"))
        forecast_methods = tuple(method for method in trial.methods if method not in (GLOO, NCCL))
        question = Question((site.rate_bps,), forecast_methods, delay_ns=trial.delay_ns, limit_s=trial.timeout_s)
        return recorded, gains(recorded, question), "", peak_bytes
    except (ProfileError, ValueError) as error:
        return None, None, str(error), peak_bytes


def _methods_at_once(workers: int, peak_bytes: int) -> int:
    words = Path("/proc/meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2].split()
    return max(1, int(MEMORY_SHARE * 1024 * int(words[0]) / (workers * peak_bytes)))


def _gather(ranks: Sequence[Child[Report]], timeout_s: float, site: Site) -> list[Any]:
    try:
        return gather(ranks, timeout_s, site.check)
    except ChildFailed as error:
        raise RunFailed(_with_output(str(error), ranks)) from error


def _with_output(message: str, ranks: Sequence[Child[Report]]) -> str:
    """A failure with the end of the rank's output, which it may still be writing."""
    child = next((child for child in ranks if message.startswith((f"{child.name} ", f"{child.name}:"))), None)
    if child is None:
        return message
    with suppress(subprocess.TimeoutExpired):
        child.process.wait(END_S)
    last = child.last_line().removeprefix(f"[rank{ranks.index(child)}]:").strip()  # as PyTorch begins its lines
    ending = "" if last in message else f"; its output ends: {last}"
    return f"{message}{ending} (more in {child.log.name})"


class MethodSteps:
    """A method's ranks, and what they report."""

    def __init__(self, name: str, trial: Trial, site: Site, plan: TurnPlan, folder: Path, say: Say) -> None:
        self.name = name
        self.durations_ns: list[int] = []
        self.losses: list[float | None] = []
        self.sent_bytes: list[int] = []
        self.certificate: Certificate | None = None
        self._trial, self._site, self._plan, self._folder, self._say = trial, site, plan, folder, say

    def turns(self) -> Any:
        """A generator that yields wherever the other methods have their turn."""
        trial, site, plan = self._trial, self._site, self._plan
        with ExitStack() as ending:
            self._say(Passing(f"{self.name}: starts {site.workers} ranks, {plan.holds[0]} steps to warm up"))
            ranks = site.start(trial.place(plan, self.name, site.workers), self._folder / "logs")
            reports = self._take(ranks)
            monitor = site.monitor()
            if monitor is not None:
                ending.callback(monitor.close)
                try:
                    monitor.start()
                except RuntimeError as error:
                    raise RunFailed(str(error)) from error
                for child, report in zip(ranks, reports, strict=True):
                    for thread in report.threads:
                        monitor.watch(child.process.pid, thread)
                monitor.pause()
            before = site.sent_bytes()
            self.sent_bytes = [0] * len(before)
            for number, (begin, end) in enumerate(plan.blocks, 1):
                yield
                self._say(Passing(f"{self.name}: turn {number} of {len(plan.blocks)}, steps {begin} to {end}"))
                if monitor is not None:
                    monitor.resume()
                before = site.sent_bytes()
                for child in ranks:
                    child.send(GoOn())
                self._take(ranks)
                pairs = zip(self.sent_bytes, before, site.sent_bytes(), strict=True)
                self.sent_bytes = [total + after - then for total, then, after in pairs]
                if monitor is not None and number < len(plan.blocks):
                    monitor.pause()
            if monitor is not None:
                self.certificate = monitor.stop()
            for child in ranks:
                child.send(GoOn())
            site.end(ranks)

    def _take(self, ranks: Sequence[Child[Report]]) -> list[StepsDone]:
        reports = _gather(ranks, self._trial.timeout_s, self._site)
        self.durations_ns += slowest_ns([report.durations_ns for report in reports])
        self.losses += mean_losses([report.losses for report in reports])
        return reports


def least_exchange_ns(recorded: RecordedRun, method: str, network: NetworkParameters) -> float:
    """The time that links need for a step's collectives."""
    moved = Counter[Kind]()
    for call in recorded.collectives:
        emulated = method == GLOO and call.kind == "reduce_scatter"  # by Gloo, with an allreduce
        if call.kind in KINDS and call.size_bytes:
            moved["allreduce" if emulated else call.kind] += call.size_bytes
    return bound_together(parse(method), moved, recorded.size_bytes, network).communication_ns


def _row(
    network: NetworkParameters | None,
    steps: MethodSteps,
    recorded: RecordedRun | None,
    forecast: dict[str, Any] | None,
    plan: TurnPlan,
) -> dict[str, Any]:
    least_ns = None
    if network is not None and recorded is not None and steps.name != NCCL:
        least_ns = least_exchange_ns(recorded, steps.name, network)
    counted = plan.holds[-1] - plan.holds[0]
    return {
        "method": steps.name,
        "step": step_summary(steps.durations_ns, plan),
        "durations_ns": steps.durations_ns,
        "losses": steps.losses,
        "forecast_ns": forecast_of(forecast, steps.name),
        "least_exchange_ns": least_ns,
        "sent_bytes": max(steps.sent_bytes) / counted if steps.sent_bytes else None,
        "certificate": None if steps.certificate is None else asdict(steps.certificate),
    }
