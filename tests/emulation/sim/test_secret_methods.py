"""Methods named `+secret` beside others in a scenario: the same bits, names in reports, what is refused, and the terms
that real ranks join with."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs torch")

from emulation.experiments.compare import compare
from emulation.report.wording import in_text, name_of
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from emulation.sim.simulated_run import simulation_config
from emulation.testbed.trainers.ddp_trainer import session_options
from emulation.testbed.trainers.trainer_messages import TrainerConfig

TEXT = """name = "t"
title = "t"
[topology]
workers = 2
rate_bps = 1_000_000_000
[workload]
iterations = 3
warmup_iterations = 1
compute_ns = 900_000
[methods]
sim = ["gloo", "switch", "switch+secret"]
mininet = ["gloo", "ring", "switch", "switch+secret"]
"""


def scenario(**values: Any) -> Scenario:
    return parse(TEXT, "t.toml", {key.replace("__", "."): value for key, value in values.items()})


def test_secret_sums_in_a_comparison_have_the_bits_of_open_ones(tmp_path: Path) -> None:
    built = compare(scenario(), "sim", tmp_path, lambda *_: None, command=[]).document
    methods = [entry["method"] for entry in built["methods"]]
    assert list(map(name_of, methods)) == ["Gloo", "switch", "switch, secret"]
    assert in_text(methods[2]) == "the switch with secret sums"
    _, in_clear, secret = built["methods"]
    assert in_clear["evaluations"] == secret["evaluations"]
    assert in_clear["summary"] == secret["summary"]
    assert secret["summary"]["parameters_identical"]


def test_the_method_s_name_alone_makes_its_sums_secret() -> None:
    given = scenario()
    assert [simulation_config(given, name).job().secret for name in given.methods.sim] == ["off", "off", "on"]


@pytest.mark.parametrize(
    ("method", "by_table", "expected"),
    [("switch+secret", "off", True), ("switch", "off", False), ("switch", "on", True), ("ring", "on", False)],
)
def test_real_ranks_are_told_so(method: str, by_table: str, expected: bool) -> None:
    """[switch] secret is of the switch alone; other methods in the same scenario run as they are."""
    place: dict[str, Any] = {"rank": 0, "workers": 2, "master_address": "127.0.0.1", "master_port": 29_500}
    place |= {"interface": "lo", "switch": "tcp://127.0.0.1:1"}
    config = TrainerConfig(scenario=scenario(switch__secret=by_table), method=method, **place)
    assert session_options(config).name.secret is expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"switch__verify": "off"}, "mininet: switch+secret: secret sums need verify=on"),
        ({"switch__backups": 1}, "switch+secret: secret sums can't be partial"),
        ({"methods__sim": ["ring+secret"]}, "sim: method ring+secret: sums by ring travel as they are"),
        (
            {"switch__verify": "off", "switch__secret": "on", "methods__mininet": ["switch"]},
            "secret sums need verify=on",
        ),
    ],
)
def test_what_can_not_be_secret_is_refused_with_the_scenario(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**values)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
