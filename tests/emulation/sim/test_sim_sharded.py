"""Training under FSDP2 in virtual time: what it learns is what plain training learns, and what its links carry."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

import torch
from torch import nn

from emulation.results.results import MethodResult, document, summary
from emulation.results.timeline import COMPUTE, NETWORK
from emulation.scenario.bounds import loads
from emulation.scenario.scenario import Scenario, parse
from emulation.scenario.workload_kinds import FSDP, WORKLOADS, WorkloadKind
from emulation.sim.simulated_run import run_method
from emulation.workloads.tasks.task import Batch
from emulation.workloads.units import UnitLayout
from transport.group.method_name import parse as parse_method

WIDTH, WORKERS = 48, 3
SCENARIO = """
name = "toy"
title = "A toy"
[topology]
workers = 3
rate_bps = 20_000_000
[workload]
name = "{name}"
iterations = 4
warmup_iterations = 1
batch_per_worker = 4
compute_ns = 1_000_000
optimizer = "sgd"
evaluate_every = 2
"""


class Toy:
    """Two blocks, and a rest that is used before and after them."""

    name = "toy"
    description = "a toy"
    source, source_sha256 = "numbers", "0" * 64
    samples = 1000
    peak_learning_rate = 0.01
    sgd_learning_rate = 0.1

    def build_model(self) -> nn.Module:
        return Blocks()

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        numbers = torch.from_numpy(np.random.default_rng(7).standard_normal((self.samples, WIDTH), np.float32)[indices])
        return numbers, (numbers.sum(1) > 0).long()

    def held_out(self) -> Iterator[Batch]:
        yield self.batch(np.arange(100), np.random.default_rng(0))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.first(values)
        for block in self.blocks:
            values = values + torch.relu(block(values))
        return self.last(values)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "toy", WorkloadKind("toy", Toy, parallel=FSDP))
    monkeypatch.setitem(WORKLOADS, "plain", WorkloadKind("plain", Toy))


def run(name: str, method: str) -> tuple[Scenario, MethodResult]:
    scenario = parse(SCENARIO.format(name=name), "toy.toml")
    return scenario, run_method(scenario, parse_method(method), Path(), lambda *_: None)


BLOCK_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
ROOT_BYTES = BLOCK_BYTES + 4 * (2 * WIDTH + 2)
MODEL_BYTES = ROOT_BYTES + 2 * BLOCK_BYTES
REDUCED_BYTES = MODEL_BYTES + 4 * (WIDTH + 1)  # two rows for three ranks
GATHERED_BYTES = REDUCED_BYTES + 2 * BLOCK_BYTES  # all but the root again


@pytest.mark.parametrize("method", ["gloo", "ring"])
def test_it_learns_what_plain_training_learns_with_the_same_bits_on_all_ranks(method: str) -> None:
    _, sharded = run("toy", method)
    _, plain = run("plain", "ring")
    assert len(set(sharded.parameter_hash_per_rank)) == 1
    assert [record.loss for record in sharded.iterations] == pytest.approx(
        [record.loss for record in plain.iterations], rel=1e-4
    )
    assert [score.iteration for score in sharded.evaluations] == [1, 3]
    assert [score.loss for score in sharded.evaluations] == pytest.approx([s.loss for s in plain.evaluations], rel=1e-4)
    assert sharded.gradient_bytes == MODEL_BYTES


def test_blocks_are_gathered_twice_the_rest_once_and_all_is_reduced_once() -> None:
    _, result = run("toy", "ring")
    assert result.collective_bytes == {"all_gather": GATHERED_BYTES, "reduce_scatter": REDUCED_BYTES}
    spans = [span for span in result.timeline if (span.rank, span.iteration) == (0, 1)]
    assert [span.name for span in spans if span.track == COMPUTE] == [
        "forward root", "forward blocks.0", "forward blocks.1", "forward root",
        "backward root", "backward blocks.1", "backward blocks.0", "backward root",
    ]  # fmt: skip
    begun = sorted((span for span in spans if span.track == NETWORK), key=lambda span: (span.start_ns, span.name))
    assert [span.name for span in begun] == [
        "all-gather root", "all-gather blocks.0", "all-gather blocks.1", "all-gather blocks.1", "all-gather blocks.0",
        "reduce-scatter blocks.1", "reduce-scatter blocks.0", "reduce-scatter root",
    ]  # fmt: skip
    times = {span.name: span for span in begun}
    assert times["reduce-scatter blocks.1"].start_ns < times["all-gather blocks.0"].end_ns, "they overlap"


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_unit_is_laid_out_as_fsdp2_lays_it_out(workers: int) -> None:
    tensors = [torch.arange(1.0, 1 + math.prod(shape)).reshape(shape) for shape in ((6, 5), (5,), (1, 2, 3), (12,))]
    layout = UnitLayout([tensor.shape for tensor in tensors], workers)
    packed = layout.pack([tensor.numpy().reshape(-1) for tensor in tensors])
    table = torch._chunk_cat(tensors, 0, workers)  # which fills what it reduces
    assert np.array_equal(packed.reshape(workers, -1), table)
    for rank, own in enumerate(packed.reshape(workers, -1)):
        pieces = [each[rank] if rank < len(each := one.chunk(workers)) else one[:0] for one in tensors]
        assert [one.tolist() for one in layout.pieces(own, rank)] == [one.reshape(-1).tolist() for one in pieces]
    back = [np.zeros(tensor.numel(), np.float32) for tensor in tensors]
    layout.unpack(packed, back)
    assert all(np.array_equal(values, tensor.reshape(-1)) for values, tensor in zip(back, tensors, strict=True))


def test_a_reduce_scatter_of_gloo_is_an_allreduce_and_none_is_beyond_its_bound() -> None:
    host, aggregator = "h1", "s1"
    factors = {}
    for method in ("gloo", "ring"):
        scenario, result = run("toy", method)
        found = summary(scenario, result)
        factors[method] = found["bound"]["traffic_factor"]
        assert 0.6 < found["share_of_bound"] <= 1
        assert found["wire_tx_bytes_per_rank_iteration"] >= found["bound"]["wire_bytes_per_rank"]
        up = loads(method, scenario.network, "reduce_scatter")[host, aggregator]
        assert up * WORKERS == {"gloo": 4, "ring": 2}[method]
    gathered, reduced = GATHERED_BYTES / MODEL_BYTES, REDUCED_BYTES / MODEL_BYTES
    assert factors == pytest.approx({"gloo": (gathered + 2 * reduced) * 2 / 3, "ring": (gathered + reduced) * 2 / 3})
    entry = document(scenario, "sim", [result])["methods"][0]
    assert entry["collective_bytes"] == result.collective_bytes
    assert not math.isnan(entry["summary"]["algbw_bytes_per_s"])


def test_calls_of_shards_take_turns_too() -> None:
    """Through the switch gathers and reductions use a link's two directions at once, unless only one call may be."""
    took = []
    for at_once in (0, 1):
        keys = {"methods.mininet": [], "hosts.calls_at_once": at_once}
        scenario = parse(SCENARIO.format(name="toy"), "toy.toml", keys)
        result = run_method(scenario, parse_method("switch"), Path(), lambda *_: None)
        took.append(result.iterations[2].duration_ns)
    assert took[1] > 1.05 * took[0]
