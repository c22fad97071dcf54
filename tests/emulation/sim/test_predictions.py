"""Each key of [hosts] and [ps] moves the model's line, the bound, the formula and the forecast as it moves packets."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from emulation.experiments.whatif.gains import Question, gains
from emulation.experiments.whatif.recorded_run import of_profile
from emulation.results.results import summary
from emulation.scenario.errors import ScenarioError
from emulation.scenario.profiles.model_profile import ModelLayer, ModelProfile
from emulation.scenario.scenario import Scenario, parse
from emulation.scenario.scenario_tables import PACKET_KEYS, HostOptions, ParameterServer
from emulation.sim.simulated_run import run_method
from transport.group.method_name import parse as parse_method
from transport.ps.config import ASYNCHRONOUS

WORKERS, RATE_BPS, DELAY_NS = 4, 10_000_000_000, 1_000
OTHERS = {"ns": 60_000, "bits/s": RATE_BPS // 8, "1: yes": 1, "calls": 1, "servers": 2, "iterations": 1, "workers": 1}
"""What a key is changed to, by its unit; choices to each of the others."""
BESIDE = {
    "hosts.calls_at_once": {
        "hosts.transfer_ns": 60_000
    },  # calls that cost hosts nothing overlap in nothing but latency
    "ps.push_then_pull": {"ps.servers": 2},
    "ps.backups": {"ps.mode": "backup", "ps.servers": 2},
    "ps.staleness": {"ps.mode": "ssp", "workload.optimizer": "sgd"},
}
"""Without which a key is refused, or changes nothing."""
SMALL = ModelProfile(
    "small",
    tuple(
        ModelLayer(str(place), {"weight": elements}, 1000 * forward_us, 1000 * backward_us)
        for place, (elements, forward_us, backward_us) in enumerate(
            ((5_000, 40, 80), (400_000, 100, 200), (70_000, 60, 150), (20_000, 50, 100))
        )
    ),
)
MOVED = 0.001
"""Of a time: less is no change."""


def changes() -> list[tuple[str, int | str]]:
    """Every key of both tables with every value to try, but what only packets have."""
    found: list[tuple[str, int | str]] = []
    for table, options in (("hosts", HostOptions), ("ps", ParameterServer)):
        for entry in dataclasses.fields(options):
            if entry.name in PACKET_KEYS:
                continue
            rule = entry.metadata
            values = [each for each in rule["allowed"] if each != entry.default] if rule["kind"] is str else None
            found += [(f"{table}.{entry.name}", value) for value in values or [OTHERS[rule["unit"]]]]
    return found


def scenario(folder: Path, keys: dict[str, Any], level: str = "packet") -> Scenario:
    (folder / "small.json").write_text(json.dumps(SMALL.document()))
    text = (
        'name = "t"\ntitle = "t"\n[methods]\nmininet = []\nsim = ["ps+wfbp"]\n[workload]\nprofile = "small.json"\n'
        f"iterations = 4\nwarmup_iterations = 1\n[topology]\nworkers = {WORKERS}\nrate_bps = {RATE_BPS}\n"
        f'delay_ns = {DELAY_NS}\nqueue_bytes = 16_000_000\n[virtual_time]\nfidelity_level = "{level}"\n'
    )
    return parse(text, "t.toml", keys, folder)


def forecast_ns(keys: dict[str, Any]) -> float:
    run = of_profile(SMALL, WORKERS)
    keys = {key: value for key, value in keys.items() if key.startswith(("hosts.", "ps."))}
    question = Question((RATE_BPS,), ("ps+wfbp",), delay_ns=DELAY_NS, keys=keys, jitter=0.0)
    document = gains(run, question)
    rows = {row["method"]: row for row in document["links"][0]["rows"]}
    return float(rows["ps+wfbp"]["iteration_ns"])


def times(folder: Path, keys: dict[str, Any]) -> dict[str, float]:
    """packets, line, bound, formula and whatif, but what refuses the keys. ScenarioError, in one line: packets do."""
    exact = scenario(folder, keys)
    method = parse_method("ps+wfbp")
    result = run_method(exact, method, Path(), lambda *_: None)
    found = summary(exact, result)
    by_formula = run_method(scenario(folder, keys, "formula"), method, Path(), lambda *_: None)
    times = {
        "packets": found["iteration_ns"]["median"],
        "line": result.environment["predicted_iteration_ns"],
        "bound": found["bound"]["communication_ns"],
    }
    if "ps.backups" in keys:
        with pytest.raises(ValueError, match="in a forecast servers wait for all workers"):
            forecast_ns(keys)
    else:
        times["whatif"] = forecast_ns(keys)
    assert times["bound"] <= found["communication_ns"]["median"]
    if by_formula.environment["fidelity_level"] == "formula":
        times["formula"] = summary(exact, by_formula)["iteration_ns"]["median"]
    else:
        assert any("Fidelity level packet, not formula: " in note for note in by_formula.notes)
    return times


@pytest.mark.parametrize(("key", "value"), changes())
def test_a_key_moves_all_that_predict_as_it_moves_packets(tmp_path: Path, key: str, value: int | str) -> None:
    beside = BESIDE.get(key, {})
    if key == "ps.backups":
        with pytest.raises(ScenarioError, match="out of range"):
            scenario(tmp_path, beside)
        beside = {"ps.servers": 2}
    try:
        scenario(tmp_path, {**BESIDE.get(key, {}), key: value})
    except ScenarioError as error:
        why = str(error)
    else:
        why = ""
    if key == "ps.staleness" or value in (*ASYNCHRONOUS, "backup"):  # of servers that keep weights, or lack a key
        assert "[ps]" in why
        assert "\n" not in why
        return
    assert not why
    before, after = times(tmp_path, beside), times(tmp_path, {**BESIDE.get(key, {}), key: value})
    moved = after["packets"] / before["packets"] - 1
    assert abs(moved) > MOVED
    for what in before.keys() & after.keys() - {"packets"}:
        assert (after[what] / before[what] - 1) * moved > 0, f"{what}: {before[what]:g} to {after[what]:g} ns"
        assert abs(after[what] / before[what] - 1) > MOVED, what
    if key.startswith("hosts."):
        assert after["line"] == pytest.approx(after["packets"], rel=0.15)
        assert after["formula"] == pytest.approx(after["packets"], rel=0.25)
        assert after["whatif"] == pytest.approx(after["packets"], rel=0.25)


def test_auto_is_predicted_by_the_collectives_that_it_takes(tmp_path: Path) -> None:
    """Small calls of eight workers take fewer steps than a ring has, and each step costs hosts time."""
    keys = {"topology.workers": 8, "hosts.transfer_ns": 60_000, "hosts.calls_at_once": 1, "methods.sim": ["auto+wfbp"]}
    method = parse_method("auto+wfbp")
    exact = scenario(tmp_path, keys)
    result = run_method(exact, method, tmp_path, lambda *_: None)
    by_formula = run_method(scenario(tmp_path, keys, "formula"), method, tmp_path, lambda *_: None)
    packets_ns = summary(exact, result)["iteration_ns"]["median"]
    assert result.environment["predicted_iteration_ns"] == pytest.approx(packets_ns, rel=0.05)
    assert summary(exact, by_formula)["iteration_ns"]["median"] == pytest.approx(packets_ns, rel=0.05)
