"""A workload is one file and one entry, a scenario one file: toys are found by everything that deals with them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.scenario import scenario as scenarios
from emulation.scenario.scenario import ScenarioError, parse
from emulation.scenario.workload_kinds import WORKLOADS, WorkloadKind
from emulation.sim.simulated_run import run_method
from emulation.testbed.trainers.trainer_messages import TrainerConfig
from emulation.workloads.tasks.task import Batch
from emulation.workloads.workload import build_workload

SCENARIO = """
name = "toy"
title = "A toy"
[workload]
name = "toy"
iterations = 3
warmup_iterations = 1
compute_ns = 1000000
"""


class Toy:
    """Which half of a line a number lies on."""

    name = "toy"
    description = "one linear layer on numbers"
    source, source_sha256 = "a line", "0" * 64
    samples = 1000
    peak_learning_rate = 0.1
    sgd_learning_rate = 0.1

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 2)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        numbers = torch.from_numpy(indices.astype(np.float32) / self.samples - 0.5)
        return numbers[:, None], (numbers > 0).long()

    def held_out(self) -> Iterator[Batch]:
        yield self.batch(np.arange(self.samples), np.random.default_rng(0))


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "toy", WorkloadKind("toy", Toy, samples=Toy.samples))


def test_a_scenario_of_it_is_trained_in_virtual_time(tmp_path: Path) -> None:
    scenario = parse(SCENARIO, "toy.toml")
    for method in scenario.methods_for("sim"):
        result = run_method(scenario, method, tmp_path, lambda *_: None)
        assert (result.parameters, len(set(result.parameter_hash_per_rank))) == (4, 1)


def test_a_trainer_builds_it() -> None:
    config = TrainerConfig(
        scenario=parse(SCENARIO, "toy.toml"),
        method="gloo",
        rank=0,
        workers=1,
        master_address="127.0.0.1",
        master_port=1,
        interface="lo",
    )
    assert build_workload(config.scenario.workload.name, 1, 0, 1, 4).gradient_bytes == 16


def test_its_faults_are_reported_before_anything_runs() -> None:
    with pytest.raises(ScenarioError, match="unknown; allowed: digits, images, text, small_text, fsdp, tp, toy"):
        parse(SCENARIO.replace('"toy"\niter', '"toys"\niter'), "toy.toml")
    with pytest.raises(ScenarioError, match=r"batch_per_worker: 300 .*allowed: 1 … 250 \(1000 samples"):
        parse(SCENARIO + "batch_per_worker = 300\n", "toy.toml")


def test_a_file_among_the_scenarios_is_a_shipped_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.toml").write_text(SCENARIO)
    monkeypatch.setattr(scenarios, "SHIPPED_FOLDER", tmp_path)
    listed = CliRunner().invoke(app, ["scenarios"])
    names = [line.split() for line in listed.stdout.partition("Tables")[0].splitlines()[1:]]
    assert names == [["toy", "A", "toy"]]
    assert scenarios.find("toy") == tmp_path / "toy.toml"
