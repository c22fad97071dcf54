"""A schedule is a class and a line in the table: a toy in it is found by everything that deals with schedules."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs torch")

from test_scheduler_plan import chain
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments import compare
from emulation.report import wording
from emulation.scenario.scenario import parse as parse_scenario
from emulation.sim.simulated_run import run_method
from switchagg.option_syntax import option, size
from transport.group.method_name import parse
from transport.schedule.policy import Policy
from transport.schedule.profile import LinearCost, Profile
from transport.schedule.schedule_model import Network, predict
from transport.schedule.schedule_plan import Transfer, numbered, whole_tensor
from transport.schedule.schedule_table import POLICIES
from transport.schedule.scheduler import describe, parse_policy, plan_transfers

SCENARIO = """
name = "toy"
title = "A toy"
[methods]
sim = ["ring", "ring+toy:small=1kB", "switch+toy"]
[topology]
workers = 3
[workload]
iterations = 2
warmup_iterations = 1
batch_per_worker = 4
compute_ns = 1000000
"""


@dataclass(frozen=True)
class Toy(Policy):
    """Small tensors first."""

    name, label, urgent = "toy", "Toy", True
    summary = "small tensors overtake large ones"
    small_bytes: int = option("small", size, 1000)
    credit_bytes: int = option("credit", size, 64_000)

    def plan(self, profile: Profile, cost: LinearCost | None) -> tuple[Transfer, ...]:
        return numbered(
            profile,
            (
                (int(profile.tensors[index].size_bytes > self.small_bytes), [whole_tensor(profile, index)])
                for index in profile.arrivals
            ),
        )


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, Toy.name, Toy)


def test_method_names_plans_and_predictions_include_it() -> None:
    assert str(parse("ring+toy:small=2kB")) == "ring+toy:small=2kB"
    assert parse_policy("toy:small=2kB") == Toy(2000)
    assert describe(Toy()) == "toy:small=1000,credit=64000"
    with pytest.raises(ValueError, match="schedule toy: small=0: must be a size of 1 byte or more"):
        parse("switch+toy:small=0")
    with pytest.raises(ValueError, match=r"allowed: bsp, wfbp, .*, toy; did you mean 'toy'"):
        parse("ring+toi")
    profile = chain(10, 5000, 20)
    assert [transfer.priority for transfer in plan_transfers("toy", profile)] == [0, 1, 0]
    network = Network(1000.0)
    assert predict("toy", profile, network) == predict(Toy(), profile, network)
    assert predict("toy", profile, network).waits_ns[0] < predict("bsp", profile, network).waits_ns[0]


@pytest.mark.parametrize("method", ["ring+toy", "switch+toy"])
def test_it_trains_in_virtual_time(method: str, tmp_path: Path) -> None:
    result = run_method(parse_scenario(SCENARIO, "toy.toml"), parse(method), tmp_path, lambda *_: None)
    assert result.environment["schedule"] == "toy:small=1000,credit=64000"
    assert result.environment["priority_classes"] == 2
    assert len(set(result.parameter_hash_per_rank)) == 1


def test_the_command_line_and_the_report_include_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, out = tmp_path / "toy.toml", tmp_path / "out"
    scenario.write_text(SCENARIO)
    # In this process, which alone knows the toy.
    monkeypatch.setitem(compare.RUNNER_MODULES, "sim", "emulation.sim.simulated_run")
    done = CliRunner().invoke(app, ["compare", str(scenario), "--on", "sim", "--out", str(out)])
    assert done.exit_code == 0, done.output
    methods = json.loads((out / "results.json").read_text())["methods"]
    assert [method["method"] for method in methods] == ["ring", "ring+toy:small=1kB", "switch+toy"]
    report = (out / "report.html").read_text()
    assert "switch, Toy" in report
    assert "small tensors overtake large ones" in report
    assert wording.in_text(parse("ring+toy:small=1kB")) == "the ring with Toy (small=1kB)"
