"""Runs every method of a scenario on one backend and writes results, host facts, figures and the report."""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulation.report.wording import disturbances, why_different
from emulation.results.results import MethodResult, differing, document, unequal_ranks, write_json
from emulation.results.timeline import Span, write_trace
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, ScenarioError
from emulation.scenario.scenario_checks import paced_fault
from emulation.scenario.topologies.topology import SINGLE
from emulation.testbed.host import host_facts
from emulation.testbed.nursery import Nursery
from switchagg.dataplane.p4.plane_program import PROGRAM_VARIABLE
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.self_test import Choice, fastest, fault
from transport.group.method_name import MethodName

Progress = Callable[[str, int, int, str], None]
"""progress(method, done, total, note): `done` of `total` iterations; `note` is a short text on what happens now."""

Runner = Callable[[Scenario, MethodName, Path, Callable[[int, int, str], None]], MethodResult]
"""The contract of both backends: one method of one scenario; raises RunFailed; leaves nothing running. A backend whose
methods can take turns has `run_methods`, too: all of them, each result with the seconds that it took."""

FIGURES = ("topology", "training", "breakdown", "matrix", "timeline", "iterations", "wire", "fidelity")
TRACE = "timeline.json"

RUNNER_MODULES = {"mininet": "emulation.testbed.mininet.mininet_run", "sim": "emulation.experiments.virtual_methods"}
"""Their processes load the package anew: a kind that is registered in the calling process alone trains in virtual time
with `emulation.sim.simulated_run`, which has no processes."""


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison. `document` is what `results.json` holds, `host` what `host.json` holds."""

    document: dict[str, Any]
    host: dict[str, Any]
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


def choose_backend(scenario: Scenario, wanted: str | None) -> tuple[str, str]:
    """(backend, why). Raises ScenarioError if the scenario isn't meant for it, RunFailed if it can't run here."""
    if wanted is not None:
        if not scenario.methods_for(wanted):
            other = "sim" if wanted == "mininet" else "mininet"
            raise ScenarioError(
                f"{scenario.file}: [methods] {wanted} is empty: this scenario is not meant for {wanted}; "
                f"allowed: --on {other}"
            )
        if wanted == "mininet" and (fault := paced_fault(scenario)):
            raise _only_simulated(scenario, fault)
        if wanted == "sim" and scenario.workload.synchronisation:
            raise ScenarioError(
                f"{scenario.file}: [workload] synchronisation: virtual time synchronises in every step; allowed: --on "
                "mininet"
            )
        if wanted == "mininet" and (missing := _mininet_missing()):
            raise RunFailed(f"mininet cannot run here: {missing}; or use --on sim")
        return wanted, "as asked"
    simulated = scenario.methods_for("sim") and not scenario.workload.synchronisation
    if not scenario.methods_for("mininet"):
        return "sim", "the scenario is meant for virtual time only"
    if fault := paced_fault(scenario):
        if not simulated:
            raise _only_simulated(scenario, fault)
        return "sim", fault
    missing = _mininet_missing()
    if not simulated:
        if missing:
            other = (
                "virtual time synchronises in every step"
                if scenario.methods.sim
                else "the scenario has no methods for sim"
            )
            raise RunFailed(f"mininet cannot run here: {missing}; {other}")
        return "mininet", "the scenario is meant for Mininet only"
    if missing:
        return "sim", f"Mininet cannot run here: {missing}"
    return "mininet", "root and Mininet are available"


def _only_simulated(scenario: Scenario, fault: str) -> ScenarioError:
    return ScenarioError(f"{scenario.file}: {fault}; allowed: --on sim")


def _mininet_missing() -> str | None:
    """The reason why Mininet can't run, with the remedy; None if it can."""
    reason: str | None = importlib.import_module(RUNNER_MODULES["mininet"]).missing()
    return reason


def choose_plane(scenario: Scenario, backend: str) -> Choice | None:
    """The data plane of the switch's method, by its self-test; None if that method isn't run.

    Raises ScenarioError for a plane that the backend can't have, RunFailed for one that doesn't work here.
    """
    if not any(method.is_switch for method in scenario.methods_for(backend)):
        return None
    switch = scenario.switch
    _check_tree(scenario, backend)
    slots = switch.streams * switch.window_slots
    if switch.dataplane == "auto":
        return fastest(slots, switch.elements)
    if DATAPLANES[switch.dataplane].in_kernel:
        if backend == "sim":
            names = ", ".join(("auto", *(name for name, kind in DATAPLANES.items() if not kind.in_kernel)))
            raise ScenarioError(
                f"{scenario.file}: [switch] dataplane: {switch.dataplane} runs in the kernel, not in virtual time; "
                f"allowed with --on sim: {names}"
            )
        return Choice(switch.dataplane, {})  # the switch reports what is missing, when it starts among its interfaces
    if DATAPLANES[switch.dataplane].program and os.environ.get(PROGRAM_VARIABLE):
        return Choice(switch.dataplane, {})  # a user's own program may have another rule
    if reason := fault(switch.dataplane, slots, switch.elements):
        raise RunFailed(
            f"{scenario.file}: [switch] dataplane: {switch.dataplane} can't run here: {reason}; or choose auto"
        )
    return Choice(switch.dataplane, {})


def _check_tree(scenario: Scenario, backend: str) -> None:
    """Refuses switches below switches where the backend or the data plane has none."""
    if len(scenario.links("switch").aggregators) <= 1:
        return
    where, plane = f"{scenario.file}: [topology] placement: {scenario.topology.placement}", scenario.switch.dataplane
    if plane != "auto" and not DATAPLANES[plane].leaf:
        able = ", ".join(("auto", *(name for name, kind in DATAPLANES.items() if kind.leaf)))
        raise ScenarioError(f"{where}: data plane {plane} can't be below another switch; allowed: {SINGLE}, or {able}")


def compare(
    scenario: Scenario,
    backend: str,
    folder: Path,
    progress: Progress,
    *,
    command: Sequence[str],
    plane: Choice | None = None,
    runner: Runner | None = None,
    nursery: Nursery | None = None,
) -> Comparison:
    """Runs the scenario's methods, in turn or one after the other, and writes `folder`.

    Files: results.json, host.json, report.html, timeline.json (a Chrome trace), a PNG per figure, and `<method>/` with
    what the backend kept. Files of an earlier run of the same name are replaced; an earlier report and its figures are
    removed first, so that a failed run never leaves one that looks new. plane: as `choose_plane` returned it; chosen
    here if not given. nursery: which has loaded, or loads, PyTorch for the methods' processes. Raises RunFailed; a
    folder that can't be written is one too.
    """
    plane = plane or choose_plane(scenario, backend)
    module = importlib.import_module(RUNNER_MODULES[backend])
    run_method = runner or module.run_method
    in_turn = None if runner else getattr(module, "run_methods", None)
    prepare(folder, scenario.methods_for(backend))
    host = host_facts(command)
    importlib.import_module("emulation.report.comparison_report")  # matplotlib and Jinja2, while PyTorch loads
    chosen = scenario
    if plane is not None:
        host["dataplane"], host["dataplanes_passed_over"] = plane.name, plane.passed_over
        chosen = dataclasses.replace(scenario, switch=dataclasses.replace(scenario.switch, dataplane=plane.name))
    results: list[MethodResult] = []
    seconds: dict[MethodName, float] = {}
    if in_turn is not None:
        for result, took_s in in_turn(chosen, scenario.methods_for(backend), folder, progress, nursery):
            results.append(result)
            seconds[result.method] = round(took_s, 3)
    for method in () if in_turn is not None else scenario.methods_for(backend):
        begin = time.monotonic()
        results.append(run_method(chosen, method, folder / method.slug, _for_method(progress, method)))
        seconds[method] = round(time.monotonic() - begin, 3)
    host["wall_seconds_per_method"] = seconds
    timelines = {result.method: result.timeline for result in results if result.timeline}
    return write(document(scenario, backend, results), host, timelines, folder)


def write(
    built: dict[str, Any], host: dict[str, Any], timelines: Mapping[MethodName, Sequence[Span]], folder: Path
) -> Comparison:
    """Everything but what a backend kept. built: as `document` gave it; host: for host.json."""
    write_json(folder / "results.json", built)
    write_json(folder / "host.json", host)
    if timelines:
        write_trace(folder / TRACE, timelines)
    from emulation.report.comparison_report import write_report

    write_report(folder, built, host, timelines)
    return Comparison(built, host, folder)


def _for_method(progress: Progress, method: MethodName) -> Callable[[int, int, str], None]:
    return lambda done, total, note: progress(str(method), done, total, note)


def prepare(folder: Path, methods: Sequence[MethodName]) -> None:
    """Makes the folder and those of the methods, and removes an earlier report. Raises RunFailed."""
    try:
        for part in (folder, *(folder / method.slug for method in methods)):
            part.mkdir(parents=True, exist_ok=True)
            probe = part / ".writable"
            probe.touch()
            probe.unlink()
        for name in ("results.json", "host.json", "report.html", TRACE, *(f"{figure}.png" for figure in FIGURES)):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error


def problems(built: dict[str, Any]) -> list[str]:
    """The problems of a finished comparison that must not be overlooked: a line each, worst first. Empty if all is
    well."""
    faults = []
    for entry in built["methods"]:
        if unequal_ranks(entry):
            faults.append(f"{entry['method']}: the ranks ended with different parameters: {why_different(entry)}")
    for method, other in differing(built):
        faults.append(f"{method} and {other}: one codec in the same packets, but the parameters differ in the end")
    for entry in built["methods"]:
        certificate = entry["certificate"]
        if certificate is not None and not certificate["valid"]:
            faults.append(f"{entry['method']}: INVALID: {' '.join(certificate['reasons'])}{_valid_rate(certificate)}")
    return [*faults, *(f"{method}: {text}" for method, text in disturbances(built))]


def _valid_rate(certificate: dict[str, Any]) -> str:
    rate_bps = certificate.get("valid_rate_bps")
    return f" This machine likely keeps [topology] rate_bps = {rate_bps}." if rate_bps else ""
