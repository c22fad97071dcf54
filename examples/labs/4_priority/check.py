"""Runs the folder's scenario in virtual time, and reads from its results when the first layer's sums were back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from emulation.experiments.compare import choose_plane
from emulation.results.results import document
from emulation.scenario.bounds import bound
from emulation.scenario.errors import RunFailed
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.scenario.scenario import Scenario, ScenarioError, load
from emulation.scenario.scenario_tables import Methods
from emulation.sim.simulated_run import run_method
from transport.group.method_name import parse as parse_method

FIRST_LAYER_TIMES = 1.5
"""How much later than alone on the links the first layer's sums may be back."""

ITERATION_TIMES = 1.05
"""How much longer than its bound an iteration may take."""


LEAST_SHARE = 0.95
"""A run that reaches less than this share of the communication's bound sends too much beside the gradients."""


def ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.1f} ms"


def fixed(scenario: Scenario) -> Scenario:
    """The part of a scenario that the learner must not change."""
    workload = replace(scenario.workload, profile=Path(scenario.workload.profile).name)
    return replace(scenario, title="", methods=Methods(), workload=workload, file="", folder="")


def results_of(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """The contents of results.json. Raises RunFailed."""
    choose_plane(scenario, "sim")
    methods = scenario.methods_for("sim")
    return document(scenario, "sim", [run_method(scenario, method, folder, lambda *_: None) for method in methods])


def bounds_ns(scenario: Scenario, summary: dict[str, Any]) -> tuple[float, float]:
    """Bounds of the first layer's sums, its bytes alone on the links, and of an iteration in any order: computing; or
    the last layer's backward pass, all bytes over a link, then its forward pass, which needs every layer's sums."""
    profile = scenario.replayed
    assert isinstance(profile, ModelProfile)
    first, last = profile.layers[0], profile.layers[-1]
    alone_ns = bound(parse_method("switch"), 4 * sum(first.tensors.values()), scenario.network).communication_ns
    all_ns = summary["bound"]["communication_ns"]
    return alone_ns, max(profile.compute_ns, last.backward_ns + all_ns + last.forward_ns)


def faults_of(scenario: Scenario, summary: dict[str, Any]) -> list[str]:
    """The faults of a method's summary. It prints the times, their limits, and their bounds."""
    first_ns, iteration_ns = summary["first_layer_ns"]["median"], summary["iteration_ns"]["median"]
    alone_ns, least_ns = bounds_ns(scenario, summary)
    first_most_ns, most_ns = FIRST_LAYER_TIMES * alone_ns, ITERATION_TIMES * least_ns
    print(f"first layer's sums back   {ms(first_ns):>9}   at most {ms(first_most_ns):>9}   bound {ms(alone_ns):>9}")
    print(f"an iteration              {ms(iteration_ns):>9}   at most {ms(most_ns):>9}   bound {ms(least_ns):>9}")
    slow = f"an iteration takes {ms(iteration_ns)}, for communication {ms(summary['communication_ns']['median'])}"
    pieces = (
        "every slice is a call of its own, with a round trip and a packet for its scale: larger ones, or whole tensors"
    )
    if first_ns > first_most_ns and summary["share_of_bound"] > LEAST_SHARE:
        waits = f"the first layer's sums wait {ms(first_ns - alone_ns)} behind others' bytes"
        return [
            waits,
            "gradients leave in the order in which they exist: take a schedule with another (README.md, step 3)",
        ]
    if first_ns > first_most_ns or iteration_ns > most_ns:
        return [slow, pieces]
    return []


def faults(folder: Path) -> list[str]:
    """The faults of the folder's scenario.toml."""
    lab = Path(__file__).parent
    try:
        scenario, solution = load(folder / "scenario.toml"), load(lab / "solution" / "scenario.toml")
        if fixed(scenario) != fixed(solution):
            return ["the rest stays as it is: change [methods] alone"]
        results = results_of(scenario, folder)
    except (ScenarioError, RunFailed) as error:
        return [str(error)]
    switches = [method for method in results["methods"] if method["method"].is_switch]
    if not switches:
        return ['[methods] sim names no switch; this exercise is about method "switch" with a schedule behind its name']
    if switches[-1]["method"].codec:
        return ["a codec sends fewer bits, which is another method; here sums have all bits"]
    return faults_of(scenario, switches[-1]["summary"])
