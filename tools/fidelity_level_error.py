"""The error of fidelity levels `flow` and `formula` against packets, for all shipped scenarios and methods.

    python tools/fidelity_level_error.py [SCENARIO …] > table.md

A line of Markdown for each scenario: the errors of an iteration's communication time, by method. What only packets
describe is left out, and said. `docs/results/fidelity-levels.md` has the table.
"""

import dataclasses
import sys
from pathlib import Path

from emulation.results.results import MethodResult
from emulation.scenario.scenario import SHIPPED_FOLDER, Scenario, load_variants
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


def line(scenario: Scenario, where: str) -> str:
    """All methods of a scenario that coarser levels have; the others are said."""
    errors: dict[str, list[str]] = {FLOW: [], FORMULA: []}
    for name in scenario.methods_for("sim"):
        if why := refusal(scenario, name, simulation_config(scenario, name)):
            print(f"{where}, {name}: packets only: {why}", file=sys.stderr)
            continue
        exact_ms, *others_ms = (communication_ms(run(scenario, name, level)) for level in (PACKET, FLOW, FORMULA))
        flow, formula = (100 * (other_ms / exact_ms - 1) for other_ms in others_ms)
        errors[FLOW].append(f"{name} {flow:+.2f} %".replace("-", MINUS))
        errors[FORMULA].append(f"{formula:+.1f} %".replace("-", MINUS))
    return f"| {where} | {', '.join(errors[FLOW])} | {', '.join(errors[FORMULA])} |"


def run(scenario: Scenario, name: MethodName, level: str) -> MethodResult:
    """A few iterations of a method."""
    return run_method(shortened(scenario, level), name, Path(), lambda *_: None)


def main() -> None:
    """Writes the table, a line as soon as it is known."""
    names = sys.argv[1:] or sorted(path.stem for path in SHIPPED_FOLDER.glob("*.toml"))
    print("| scenario | flow | formula |\n|---|---|---|", flush=True)
    for name in names:
        for point, scenario in load_variants(SHIPPED_FOLDER / f"{name}.toml"):
            where = ", ".join([name, *(f"{key.partition('.')[2]} = {value}" for key, value in point.items())])
            print(line(scenario, where), flush=True)


if __name__ == "__main__":
    main()
