"""Tuning: what is proposed, what the optimiser is given, and that a tuned partition takes effect on every rank."""

import csv
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_groups import FakeNetwork, run_ranks
from test_torch_priority import batch, mlp, sgd
from torch.nn.functional import cross_entropy

from transport.schedule.by_urgency import ByteScheduler
from transport.schedule.policy import TuningPoint
from transport.schedule.tuning import CREDIT_BYTES, PARTITION_BYTES, Tuner, missing
from transport.torch.priority import handle as priority
from transport.torch.priority import schedule_tuning as priority_tuning
from transport.torch.priority.schedule_tuning import MEASURED_ITERATIONS, SETTLING_ITERATIONS, ScheduleTuning

FIRST = TuningPoint(4_000_000, 16_000_000)


class Recorder:
    """An optimiser that proposes what it was given."""

    def __init__(self, proposals: list[dict[str, float]]) -> None:
        self.proposals, self.told = proposals, []  # type: ignore[var-annotated]

    def suggest(self) -> dict[str, float]:
        return self.proposals.pop(0)

    def register(self, params: dict[str, float], target: float) -> None:
        self.told.append((params, target))


def test_points_are_the_given_then_random_then_proposed_then_the_best() -> None:
    optimiser = Recorder([{"partition": 17.0, "credit": 18.0}, {"partition": 99.0, "credit": -3.0}])
    tuner = Tuner(FIRST, 4, make=lambda bounds, seed: optimiser)
    assert tuner.current == FIRST
    assert tuner.observe(200.0) == tuner.current != FIRST
    chosen = tuner.current
    assert PARTITION_BYTES[0] <= chosen.partition_bytes <= PARTITION_BYTES[1]
    assert CREDIT_BYTES[0] <= chosen.credit_bytes <= CREDIT_BYTES[1]
    assert tuner.observe(100.0) == TuningPoint(1 << 17, 1 << 18)
    assert tuner.observe(100.0) == TuningPoint(
        PARTITION_BYTES[1], CREDIT_BYTES[0]
    )  # within the bounds, whatever is proposed
    assert not tuner.done
    assert tuner.observe(400.0) == tuner.best == chosen
    assert tuner.done
    assert [target for _, target in optimiser.told] == [1.0, 2.0, 2.0, 0.5]
    assert optimiser.told[0][0] == {"partition": math.log2(4_000_000), "credit": math.log2(16_000_000)}


def test_the_same_seed_tries_the_same_points() -> None:
    def random_points(seed: int) -> list[TuningPoint]:
        tuner = Tuner(FIRST, 10, seed, make=lambda bounds, seed: Recorder([]))
        return [tuner.observe(1.0) for _ in range(3)]

    assert random_points(1) == random_points(1) != random_points(2)


@pytest.fixture
def real() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.mark.usefixtures("real")
def test_the_real_optimiser_finds_a_fast_point() -> None:
    """Iterations of a made-up network: best near a partition of 512 KiB and a credit of 2 MiB, 1.6 times the first."""

    def iteration_ns(point: TuningPoint) -> float:
        off = (math.log2(point.partition_bytes) - 19) ** 2 + (math.log2(point.credit_bytes) - 21) ** 2
        return 1e6 * (1 + off / 30)

    tuner = Tuner(FIRST, 15)
    while not tuner.done:
        tuner.observe(iteration_ns(tuner.current))
    assert len(tuner.tried) == 15
    assert iteration_ns(tuner.best) == min(time for _, time in tuner.tried)
    assert iteration_ns(tuner.best) < iteration_ns(FIRST) / 1.4
    assert len({point for point, _ in tuner.tried}) > 10


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bayes_opt", None)
    told = missing()
    assert told.startswith("tuning needs the package bayesian-optimization (")
    assert told.endswith("pip install 'switchagg[tune]', or leave out tune=")
    assert "\n" not in told
    network = FakeNetwork(2)
    groups = network.groups()

    def program(rank: int) -> str:
        model = mlp()
        with pytest.raises(ValueError, match="attach: ") as caught:
            priority.attach(model, sgd(model), groups[rank], "bytescheduler:tune=3")
        return str(caught.value)

    assert run_ranks(program, 2) == [f"attach: {told}"] * 2
    network.stop()


def test_ranks_count_alike_and_rank_0_measures(tmp_path: Path) -> None:
    said: list[bytes] = []

    def broadcast(data: bytes) -> bytes:
        said.append(data or said[-1])
        return said[-1]

    clock = itertools.count(0, 1000).__next__
    policy = ByteScheduler(*vars(FIRST).values(), tune_steps=2)
    tunable = policy.tuning
    assert tunable is not None
    log = tmp_path / "tuning.csv"

    def make(first: TuningPoint, steps: int) -> Tuner:
        return Tuner(first, steps, make=lambda bounds, seed: Recorder([]))

    ranks = [ScheduleTuning(tunable, rank, broadcast, log, make_tuner=make, clock=clock) for rank in (0, 1)]
    for step in range(2):
        for _ in range(SETTLING_ITERATIONS + MEASURED_ITERATIONS - 1):
            assert not any(rank.due for rank in ranks)
            for rank in ranks:
                rank.iteration_ends()
        assert all(rank.due for rank in ranks)
        found = [rank.next_policy(12 * (step + 1)) for rank in ranks]
        assert found[0] == found[1]
    for rank in ranks:
        for _ in range(100):
            rank.iteration_ends()
            assert not rank.due
    with log.open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "iteration", "partition_bytes", "credit_bytes", "iteration_ns"]
    assert rows[1][:4] == ["1", "12", "4000000", "16000000"]
    assert [row[0] for row in rows[1:]] == ["1", "2"]
    assert found[0] in (policy, ByteScheduler(int(rows[2][2]), int(rows[2][3]), 2))


@pytest.fixture
def network() -> Iterator[Callable[[str], FakeNetwork]]:
    made: list[FakeNetwork] = []

    def make(kind: str) -> FakeNetwork:
        made.append(FakeNetwork(2, kind))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("kind", ["keyed", "classes"])
def test_a_tuned_partition_takes_effect(
    network: Callable[[str], FakeNetwork], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The released ByteScheduler stores the tuned partition where nothing reads it: here transfers change their
    size."""
    points = [TuningPoint(1000, 4000), TuningPoint(300, 2000), TuningPoint(70_000, 5000)]

    class Scripted(Tuner):
        def __init__(self, first: TuningPoint, steps: int) -> None:
            super().__init__(first, steps, make=lambda bounds, seed: Recorder([]))

        def _propose(self) -> TuningPoint:
            return points[len(self.tried)]

        @property
        def best(self) -> TuningPoint:
            return points[1]

    monkeypatch.setattr(
        priority_tuning.ScheduleTuning.__init__, "__kwdefaults__", {"make_tuner": Scripted, "clock": time.monotonic_ns}
    )
    monkeypatch.setattr(priority, "missing", str)
    fake = network(kind)
    groups = fake.groups()
    torch.manual_seed(1)
    models = [mlp() for _ in range(2)]
    per_point = SETTLING_ITERATIONS + MEASURED_ITERATIONS

    def program(rank: int) -> tuple[dict[int, list[int]], list[Any]]:
        model = models[rank]
        optimizer = sgd(model)
        credits: list[Any] = []
        words = "bytescheduler:partition=1kB,credit=4kB,tune=3"
        with priority.attach(
            model,
            optimizer,
            groups[rank],
            words,
            options=priority.AttachOptions(observed_iterations=1, tuning_log=tmp_path / f"{rank}"),
        ) as handle:
            for step in range(1 + 3 * per_point + 2):
                points, labels = batch(step, rank)
                optimizer.zero_grad()
                cross_entropy(model(points), labels).backward()
                optimizer.step()
                credits.append(getattr(groups[rank], "credit_bytes", None))
            handle.wait()
            sizes: dict[int, list[int]] = {}
            for record in handle.records().transfers:
                if record.name.startswith("2.weight["):
                    sizes.setdefault(record.iteration, []).append(record.size_bytes)
        return {iteration: sorted(found) for iteration, found in sizes.items()}, credits

    told = run_ranks(program, 2)
    assert fake.mismatches == []
    assert told[0] == told[1]
    sizes, credits = told[0]
    by_point = [sizes[1 + point * per_point + 5] for point in range(3)] + [sizes[1 + 3 * per_point + 1]]
    assert by_point == [[600] + [1000] * 6, [300] * 22, [6600], [300] * 22]  # 1650 float32; 250, 75, 17,500 of them
    if kind == "keyed":
        assert [credits[1 + point * per_point + 5] for point in range(3)] == [4000, 2000, 5000]
        sizes_of: dict[Any, set[int]] = {}
        for match, size in fake.ended:
            sizes_of.setdefault(match, set()).add(size)
        assert all(len(found) == 1 for match, found in sizes_of.items())  # servers keep what they know of a key
    assert (tmp_path / "0").read_text().count("\n") == 4
    assert not (tmp_path / "1").exists()
