"""Tensor parallelism in virtual time: cut layers learn what whole ones learn."""

import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

from torch import nn

from emulation.results.results import MethodResult, summary
from emulation.results.timeline import COMPUTE, NETWORK
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from emulation.scenario.workload_kinds import TP, WORKLOADS, WorkloadKind
from emulation.sim.simulated_run import run_method
from emulation.workloads.tasks.text import Gpt
from emulation.workloads.tasks.text_tensor import SharedBlock, TensorTextTask
from emulation.workloads.tensor_ranks import TensorReplicas
from transport.group.method_name import parse as parse_method

SCENARIO = """
name = "toy"
title = "A toy"
[topology]
workers = {workers}
rate_bps = 20_000_000
[workload]
name = "{name}"
iterations = 3
warmup_iterations = 1
batch_per_worker = 2
compute_ns = 1_000_000
optimizer = "sgd"
evaluate_every = 3
"""
WIDTH, BLOCKS, WORKERS = 16, 2, 2


class Small(TensorTextTask):
    held_out_windows = 2

    def build_model(self) -> nn.Module:
        return Gpt(256, self.context, WIDTH, heads=2, blocks=BLOCKS, block=SharedBlock)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "toy", WorkloadKind("toy", Small, parallel=TP))
    monkeypatch.setitem(WORKLOADS, "plain", WorkloadKind("plain", Small))


def run(name: str, workers: int, method: str, **more: object) -> tuple[Scenario, MethodResult]:
    scenario = parse(SCENARIO.format(name=name, workers=workers), "toy.toml", more)
    return scenario, run_method(scenario, parse_method(method), Path(), lambda *_: None)


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_cut_layers_learn_what_whole_ones_learn(method: str) -> None:
    _, whole = run("plain", 1, "ring")
    scenario, cut = run("toy", WORKERS, method)
    losses = [record.loss for record in cut.iterations]
    assert losses == pytest.approx([record.loss for record in whole.iterations], rel=1e-5)
    assert cut.evaluations[-1].loss == pytest.approx(whole.evaluations[-1].loss, rel=1e-5)
    assert len(set(cut.parameter_hash_per_rank)) == 1
    assert cut.parameters == whole.parameters
    activations = 4 * BLOCKS * (2 * 64 * WIDTH * 4)
    assert cut.collective_bytes == {"allreduce": activations}
    assert cut.gradient_bytes == activations
    found = summary(scenario, cut)
    assert found["bound"]["traffic_factor"] == 1
    assert found["exposed_communication_ns"]["median"] == found["communication_ns"]["median"], "nothing overlaps"
    spans = [span for span in cut.timeline if (span.rank, span.iteration) == (0, 1)]
    assert len([span for span in spans if span.track == NETWORK]) == 4 * BLOCKS
    assert len([span for span in spans if span.track == COMPUTE]) == 4 * BLOCKS + 2


def test_a_run_that_ends_early_leaves_no_thread() -> None:
    replicas = TensorReplicas("toy", 1, WORKERS, 2)
    steps = replicas.ranks[0].iterate(0)
    assert next(steps).dtype == np.float32
    before = threading.active_count()
    steps.close()
    assert threading.active_count() == before - 1
    with pytest.raises(RunFailed, match="no result after 3 timeouts"):
        run("toy", WORKERS, "switch", **{"faults.loss": 1.0, "switch.retry_limit": 2})


def test_as_many_workers_as_share_the_heads() -> None:
    text = SCENARIO.format(name="tp", workers=3)
    with pytest.raises(ScenarioError, match=r"workers: 3 can't share \[workload\] name = 'tp'; allowed: 2, 4, 8"):
        parse(text, "toy.toml")
