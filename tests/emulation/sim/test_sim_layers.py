"""Training under schedules in virtual time: exact sums in every order, against the model, across methods."""

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

from emulation.results.results import document
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, parse
from emulation.sim import schedule_tuning
from emulation.sim.layers import LayeredTraining
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.simulated_run import run_method, schedule_of, scheduled, simulation_config
from emulation.workloads.replicas import Replicas
from emulation.workloads.workload import Score
from transport.group.method_name import parse as parse_method
from transport.schedule.by_arrival import MgWfbp
from transport.schedule.schedule_table import POLICIES
from transport.schedule.scheduler import LayerProfile, LinearCost, Profile, TensorProfile
from transport.schedule.tuning import Tuner

SIZES = (120_000, 300, 50_000, 1, 4000)  # in order of arrival: most parameters are in the last layers
LAYERS = (3, 3, 2, 1, 0)
FORWARD_NS, BACKWARD_NS = (2_400_000, 1_800_000, 1_200_000, 600_000), 12_000_000
COMPUTE_NS = sum(FORWARD_NS) + BACKWARD_NS
METHODS = ("ring", "ps", "switch")


def scenario(**overrides: Any) -> Scenario:
    defaults = {
        "topology.workers": 3,
        "topology.rate_bps": 500_000_000,
        "workload.iterations": 5,
        "workload.warmup_iterations": 1,
        "workload.evaluate_every": 5,
        "workload.compute_ns": COMPUTE_NS,
    }
    return parse('name = "t"\ntitle = "t"\nseed = 5\n', "t.toml", {**defaults, **overrides})


def profile() -> Profile:
    ready_ns = (1_800_000, 1_800_000, 5_400_000, 9_000_000, BACKWARD_NS)
    tensors = [TensorProfile(f"t{k}", SIZES[k], LAYERS[k], ready_ns[k]) for k in range(len(SIZES))]
    layers = [LayerProfile(f"l{k}", forward_ns) for k, forward_ns in enumerate(FORWARD_NS)]
    return Profile(tuple(tensors), tuple(layers), BACKWARD_NS)


class IntegerTensor:
    def __init__(self, elements: int) -> None:
        self.elements = elements


class CountingReplicas:
    """Small integer gradients, so that averages are exact; insists on all sums before the next backward pass."""

    def __init__(self, workers: int) -> None:
        self.buckets = [IntegerTensor(size) for size in SIZES]
        self.losses = [0.0] * workers
        self.parameters = sum(SIZES)
        self.gradient_bytes = 4 * sum(SIZES)
        self.forward_fraction = sum(FORWARD_NS) / COMPUTE_NS
        self.workers = workers
        self.applied: dict[tuple[int, int], list[np.ndarray]] = {}

    def ready_ns(self, compute_ns: int) -> list[int]:
        return [sum(FORWARD_NS) + tensor.ready_ns for tensor in profile().tensors]

    def gradients_of(self, rank: int, iteration: int) -> list[np.ndarray]:
        assert iteration == 0 or (rank, iteration - 1) in self.applied
        generator = np.random.default_rng([rank, iteration])
        return [generator.integers(-500, 500, size).astype(np.float32) for size in SIZES]

    def apply_to(self, rank: int, iteration: int, averaged: list[np.ndarray]) -> None:
        assert (rank, iteration) not in self.applied
        self.applied[rank, iteration] = [tensor.copy() for tensor in averaged]

    def evaluate(self) -> Score:
        return Score(0.5, 1.5)

    def parameter_hashes(self) -> list[str]:
        return ["same"] * self.workers


def train(given: Scenario, method: str) -> tuple[Any, CountingReplicas]:
    name = parse_method(method)
    replicas = CountingReplicas(given.topology.workers)
    schedule = schedule_of(given, name, profile())
    star = SIMULATIONS[name.method](scheduled(simulation_config(given), name, schedule))
    training = LayeredTraining(given, star, replicas, ComputeTimes(given), lambda *_: None, schedule)  # type: ignore[arg-type]
    training.run()
    return training.result(name, []), replicas


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_rank_applies_the_exact_average_in_every_iteration(method: str, policy: str) -> None:
    result, replicas = train(scenario(**{"faults.loss": 0.005}), f"{method}+{policy}")
    assert sorted(replicas.applied) == [(rank, iteration) for rank in range(3) for iteration in range(5)]
    for (_, iteration), averaged in replicas.applied.items():
        gradients = [replicas.gradients_of(rank, iteration) for rank in range(3)]
        for place, got in enumerate(averaged):
            total = np.sum([gradients[rank][place] for rank in range(3)], axis=0, dtype=np.float32)
            assert np.array_equal(got, total / np.float32(3))
    assert [record.iteration for record in result.iterations] == list(range(5))
    assert all(record.duration_ns >= COMPUTE_NS for record in result.iterations)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [("wfbp", 0.06), ("p3:slice=10000,credit=80kB", 0.20), ("bytescheduler:partition=32kB", 0.20)],
)
def test_an_iteration_takes_what_the_model_predicts(method: str, policy: str, tolerance: float) -> None:
    """The model knows no packets, no windows, no two streams of the switch, and no steps of a ring, in each of which
    an urgent message may find the credit taken: hence the tolerance with priorities."""
    for rate_bps in (200_000_000, 500_000_000):
        result, _ = train(scenario(**{"topology.rate_bps": rate_bps}), f"{method}+{policy}")
        predicted_ns = result.environment["predicted_iteration_ns"]
        for record in result.iterations[1:4]:
            assert record.duration_ns == pytest.approx(predicted_ns, rel=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_urgent_slices_overtake_what_the_last_layers_send(method: str) -> None:
    """At this rate the last layers' gradients take longer than all computing: the first layer's must not wait."""
    given = scenario(**{"topology.rate_bps": 250_000_000})
    plain, _ = train(given, f"{method}+wfbp")
    urgent, _ = train(given, f"{method}+bytescheduler:partition=40kB,credit=64kB")
    assert urgent.iterations[2].first_layer_ns < 0.6 * plain.iterations[2].first_layer_ns
    assert urgent.iterations[2].duration_ns < plain.iterations[2].duration_ns


@pytest.mark.parametrize("method", METHODS)
def test_wire_bytes_are_those_of_the_iterations_counted(method: str) -> None:
    """Iterations overlap, and yet none of the warm-up's bytes are counted."""
    given = scenario(**{"topology.rate_bps": 200_000_000})
    plain, _ = train(given, f"{method}+bsp")
    urgent, _ = train(given, f"{method}+bytescheduler:partition=64kB,credit=128kB")
    for ours, header_only in zip(urgent.wire_tx_bytes_per_rank, plain.wire_tx_bytes_per_rank, strict=True):
        assert ours == pytest.approx(header_only, rel=0.09)  # slices have a description, and end in half-empty packets


def test_without_overlap_an_iteration_is_compute_and_then_communication() -> None:
    result, _ = train(scenario(), "switch+bsp")
    transfer_ns = result.iterations[2].communication_ns
    assert [record.duration_ns for record in result.iterations[1:4]] == [COMPUTE_NS + transfer_ns] * 3


def test_a_cost_given_in_the_schedule_is_not_fitted_again() -> None:
    """Plan and prediction use the same cost: the options', and what they leave open as fitted."""
    fitted = LinearCost(500.0, 3.0)
    assert MgWfbp(alpha_ns=7.0).with_cost(lambda: fitted) == MgWfbp(7.0, 3.0)
    assert MgWfbp().with_cost(lambda: fitted) == MgWfbp(500.0, 3.0)
    assert MgWfbp(7.0, 8.0).with_cost(lambda: fitted) == MgWfbp(7.0, 8.0)


def test_spans_cover_layers_and_transfers() -> None:
    result, _ = train(scenario(), "switch+p3")
    mine = [span for span in result.timeline if span.rank == 0 and span.iteration == 2]
    assert [span.name for span in mine if span.track == "compute"] == ["l0", "l1", "l2", "l3", "backward"]
    transfers = [span for span in mine if span.track == "network"]
    assert sorted(span.name for span in transfers) == ["t0"] * 3 + ["t1", "t2", "t2", "t3", "t4"]
    assert {span.priority for span in transfers} == {0, 1, 2, 3}
    assert sum(span.size_bytes for span in mine) == 4 * sum(SIZES)


def test_real_training_is_deterministic_and_equal_on_all_ranks() -> None:
    given = scenario(**{"workload.batch_per_worker": 4, "topology.rate_bps": 2_000_000_000})
    results = [run_method(given, parse_method("switch+p3"), None, lambda *_: None) for _ in range(2)]  # type: ignore[arg-type]
    first, again = (document(given, "sim", [result]) for result in results)
    assert first == again
    assert len(set(first["methods"][0]["parameter_hash_per_rank"])) == 1
    assert results[0].timeline == results[1].timeline


class SmallSizes:
    """In place of the optimiser."""

    def suggest(self) -> dict[str, float]:
        return {"partition": 17.0, "credit": 18.0}

    def register(self, params: dict[str, float], target: float) -> None:
        assert target > 0


def test_a_tuned_schedule_has_the_fastest_of_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_tuning, "missing", lambda: "")
    monkeypatch.setattr(schedule_tuning, "Tuner", partial(Tuner, make=lambda *_: SmallSizes()))
    values = {"workload.batch_per_worker": 2, "workload.compute_ns": 80_000_000, "workload.iterations": 4}
    given = scenario(**values, **{"topology.workers": 2})
    first, found = (
        run_method(given, parse_method(f"ps+bytescheduler:partition=8MB{more}"), None, lambda *_: None)  # type: ignore[arg-type]
        for more in ("", ",tune=3")
    )
    assert found.iterations[2].duration_ns < first.iterations[2].duration_ns
    assert "partition=8000000" in first.environment["schedule"]
    assert "partition=131072,credit=262144" in found.environment["schedule"]
    assert any("tuned before the run: 3 points" in note for note in found.notes)
    assert not any("tuned" in note for note in first.notes)


def test_tuning_without_its_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_tuning, "missing", lambda: "tuning needs the package bayesian-optimization")
    with pytest.raises(RunFailed, match="needs the package bayesian-optimization"):
        run_method(scenario(), parse_method("ring+bytescheduler:tune=3"), None, lambda *_: None)  # type: ignore[arg-type]


def test_a_profile_names_every_parameter_once_and_shares_out_the_forward_pass() -> None:
    replicas = Replicas("text", 1, 1, 2, 10, 1)
    found = replicas.profile(80_000_000)
    assert sum(tensor.elements for tensor in found.tensors) == replicas.parameters
    assert len({tensor.name for tensor in found.tensors}) == len(found.tensors)
    assert found.forward_ns == pytest.approx(80_000_000 - found.backward_ns, abs=len(found.layers))
    assert found.tensors[0].layer == len(found.layers) - 1
    by_name = {tensor.name: tensor.layer for tensor in found.tensors}
    assert by_name["symbols.weight"] == by_name["positions.weight"] == 0
