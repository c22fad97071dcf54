"""How far zooms `flow` and `formula` are from packets: every shipped scenario, every method, a few iterations of each.

    python tools/zoom_error.py [SCENARIO …] > table.md

A line of Markdown for each: communication time of an iteration by packets, and the others' errors. What only packets
describe is left out, and said. `docs/zoom.md` has the table.
"""

import dataclasses
import sys
from pathlib import Path

from emulation.results import MethodResult
from emulation.scenario import SHIPPED_FOLDER, Scenario, load_variants
from emulation.scenario_tables import FLOW, FORMULA, PACKET
from emulation.sim.run import run_method, simulation_config
from emulation.sim.zoom import refusal
from transport.group.method_name import MethodName

COUNTED = 1
"""Iterations, after one that isn't."""


def shortened(scenario: Scenario, zoom: str) -> Scenario:
    """The scenario with a few iterations, at a zoom."""
    iterations = 1 + COUNTED
    workload = dataclasses.replace(
        scenario.workload, iterations=iterations, warmup_iterations=1, evaluate_every=iterations
    )
    virtual_time = dataclasses.replace(scenario.virtual_time, zoom=zoom)
    return dataclasses.replace(scenario, workload=workload, virtual_time=virtual_time)


def communication_ms(result: MethodResult) -> float:
    """The mean of what is counted."""
    counted = result.iterations[-COUNTED:]
    return sum(record.communication_ns for record in counted) / len(counted) / 1e6


def line(scenario: Scenario, where: str, name: MethodName) -> str:
    """One method's."""

    def run(zoom: str) -> MethodResult:
        return run_method(shortened(scenario, zoom), name, Path(), lambda *_: None)

    if why := refusal(scenario, name, simulation_config(scenario, name.codec)):
        return f"| {where} | {name} | | | packets only: {why} |"
    exact = communication_ms(run(PACKET))
    errors = [100 * (communication_ms(run(zoom)) / exact - 1) for zoom in (FLOW, FORMULA)]
    return f"| {where} | {name} | {exact:.4g} | {errors[0]:+.2f} % | {errors[1]:+.1f} % |"


def main() -> None:
    """Writes the table, a line as soon as it is known."""
    names = sys.argv[1:] or sorted(path.stem for path in SHIPPED_FOLDER.glob("*.toml"))
    print("| scenario | method | packets, ms | flow | formula |\n|---|---|---|---|---|", flush=True)
    for name in names:
        for point, scenario in load_variants(SHIPPED_FOLDER / f"{name}.toml"):
            where = ", ".join([name, *(f"{key.partition('.')[2]} = {value}" for key, value in point.items())])
            for method in scenario.methods_for("sim"):
                print(line(scenario, where, method), flush=True)


if __name__ == "__main__":
    main()
