"""The error of fidelity levels `flow` and `formula` against packets, for all shipped scenarios and methods.

    python tools/fidelity_level_error.py [SCENARIO …] > table.md

A line of Markdown for each scenario: the median and the largest error of an iteration's communication time, in per
cent, over its methods and points. `docs/results/fidelity-levels.md` has the table.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from emulation.report.table_kit import markdown
from emulation.results.results import MethodResult
from emulation.scenario.scenario import Scenario, load_variants, shipped
from emulation.scenario.scenario_tables import FLOW, FORMULA, PACKET
from emulation.sim.fidelity_level import refusal
from emulation.sim.simulated_run import run_method, simulation_config
from transport.group.method_name import MethodName

MINUS = "\N{MINUS SIGN}"
COUNTED = 1
"""Iterations, after one that isn't."""


def shortened(scenario: Scenario, level: str) -> Scenario:
    """The scenario with a few iterations, at a fidelity level."""
    iterations = 1 + COUNTED
    workload = dataclasses.replace(
        scenario.workload, iterations=iterations, warmup_iterations=1, evaluate_every=iterations
    )
    virtual_time = dataclasses.replace(scenario.virtual_time, fidelity_level=level)
    return dataclasses.replace(scenario, workload=workload, virtual_time=virtual_time)


def communication_ms(result: MethodResult) -> float:
    """The mean of what is counted."""
    counted = result.iterations[-COUNTED:]
    return sum(record.communication_ns for record in counted) / len(counted) / 1e6


def errors(scenario: Scenario, where: str) -> dict[str, dict[str, float]]:
    """Per cent by fidelity level and method; what only packets describe is left out, and said."""
    found: dict[str, dict[str, float]] = {FLOW: {}, FORMULA: {}}
    for name in scenario.methods_for("sim"):
        if why := refusal(scenario, name, simulation_config(scenario, name)):
            print(f"{where}, {name}: packets only: {why}", file=sys.stderr)
            continue
        exact_ms, *others_ms = (communication_ms(run(scenario, name, level)) for level in (PACKET, FLOW, FORMULA))
        for level, other_ms in zip((FLOW, FORMULA), others_ms, strict=True):
            found[level][", ".join([f"`{name}`", *filter(None, [where])])] = 100 * (other_ms / exact_ms - 1)
    return found


def run(scenario: Scenario, name: MethodName, level: str) -> MethodResult:
    """A few iterations of a method."""
    return run_method(shortened(scenario, level), name, Path(), lambda *_: None)


def cell(found: Mapping[str, float]) -> str:
    """The median size of errors, and the largest error with its method."""
    largest = max(found, key=lambda name: abs(found[name]))
    shown = f"{found[largest]:+.1f} " + re.sub(":[^`]*", "", largest)  # without the method's options
    return f"{median(map(abs, found.values())):.2f} ({shown})".replace("-", MINUS)


def main() -> None:
    """Writes the table, a line for each scenario as soon as it is known."""
    print("\n".join(markdown(("scenario", "flow: median (largest)", "formula: median (largest)"), [])))
    for name in sys.argv[1:] or shipped():
        found: dict[str, dict[str, float]] = {FLOW: {}, FORMULA: {}}
        for point, scenario in load_variants(shipped()[name]):
            where = ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in point.items())
            for level, by_method in errors(scenario, where).items():
                found[level] |= by_method
        if found[FLOW]:
            print(markdown((name, cell(found[FLOW]), cell(found[FORMULA])), [])[0], flush=True)


if __name__ == "__main__":
    main()
