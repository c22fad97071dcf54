"""How long ranks compute in virtual time: one number, one by rank, drawn; and stragglers."""

import statistics
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

from test_sim_run import scenario, train

from emulation.scenario.compute import ComputeTimes
from emulation.scenario.scenario import Scenario, ScenarioError, canonical, parse
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.simulated_run import run_method
from tests.shared.canonical_scenario import from_canonical
from transport.group.method_name import METHODS
from transport.group.method_name import parse as parse_method

MS = 1_000_000


def given(**overrides: Any) -> Scenario:
    values = {name.replace("__", "."): value for name, value in overrides.items()}
    return parse('name = "t"\ntitle = "t"\nseed = 5\n', "t", values)


def straggler(rank: int, **more: Any) -> Scenario:
    return scenario(iterations=6, compute_ns=2 * MS, faults__stragglers=[{"rank": rank, **more}])


def test_a_list_gives_each_rank_its_own_time() -> None:
    times = ComputeTimes(given(topology__workers=3, workload__compute_ns=[5, 7, 6]))
    assert [times.ns(rank, 9) for rank in range(3)] == [5, 7, 6]
    assert (times.planned_ns, times.means_ns()) == (7, [5, 7, 6])


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "shifted_exponential"])
def test_draws_have_the_mean_and_deviation_asked_for(distribution: str) -> None:
    compute_ns = {"distribution": distribution, "mean_ns": 20 * MS, "deviation_ns": 4 * MS}
    times = ComputeTimes(given(workload__compute_ns=compute_ns))
    drawn = [times.ns(rank, iteration) for rank in range(4) for iteration in range(1000)]
    assert statistics.mean(drawn) == pytest.approx(20 * MS, rel=0.02)
    assert statistics.stdev(drawn) == pytest.approx(4 * MS, rel=0.06)
    assert min(drawn) >= (16 * MS if distribution == "shifted_exponential" else 0)
    assert ComputeTimes(given(workload__compute_ns=compute_ns)).ns(2, 17) == times.ns(2, 17) != times.ns(1, 17)
    assert ComputeTimes(given(workload__compute_ns=compute_ns, seed=6)).ns(2, 17) != times.ns(2, 17)


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "shifted_exponential"])
def test_jitter_is_in_proportion_to_what_each_rank_is_given(distribution: str) -> None:
    keys: dict[str, Any] = {"topology__workers": 2, "workload__compute_ns": [20 * MS, 60 * MS]}
    jitter = {"distribution": distribution, "deviation": 0.1}
    times = ComputeTimes(given(**keys, workload__compute_jitter=jitter))
    for rank, mean_ns in enumerate((20 * MS, 60 * MS)):
        drawn = [times.ns(rank, iteration) for iteration in range(4000)]
        assert statistics.mean(drawn) == pytest.approx(mean_ns, rel=0.01)
        assert statistics.stdev(drawn) == pytest.approx(mean_ns / 10, rel=0.06)
        assert max(drawn) < times.most_ns()
    measured = ComputeTimes(given(workload__compute_jitter=jitter), 30 * MS)  # of a profile, or of this machine
    assert measured.ns(1, 7) == round(30 * MS * times.ns(1, 7) / (60 * MS))
    assert isinstance(measured.means_ns(), list)
    one = given(**keys, workload__compute_jitter=jitter)
    assert from_canonical(canonical(one)).workload == one.workload
    still = ComputeTimes(given(**keys, workload__compute_jitter={"distribution": distribution, "deviation": 0}))
    assert [still.ns(rank, 3) for rank in range(2)] == [20 * MS, 60 * MS]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"workload__compute_jitter": 0.1},
            "compute_jitter: 0.1 is not allowed; allowed: a table, like {deviation = 0.05}",
        ),
        ({"workload__compute_jitter": {}}, "[workload] compute_jitter: deviation: missing"),
        (
            {"workload__compute_jitter": {"distribution": "shifted_exponential", "deviation": 2}},
            "[workload] compute_jitter: deviation: 2 is out of range; allowed there: 0 … 1",
        ),
        (
            {
                "workload__compute_jitter": {"deviation": 0.1},
                "workload__compute_ns": {"distribution": "normal", "mean_ns": 5, "deviation_ns": 1},
            },
            "[workload] compute_jitter: compute_ns is drawn already",
        ),
    ],
)
def test_jitter_that_cannot_be_is_one_line(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        given(**values)
    assert words in str(error.value)


def test_a_straggler_may_be_another_rank_in_each_iteration() -> None:
    times = ComputeTimes(given(workload__compute_ns=10, faults__stragglers=[{"rank": -1, "factor": 3}]))
    slow = [[rank for rank in range(times._workers) if times.ns(rank, k) == 30] for k in range(100)]
    assert {len(ranks) for ranks in slow} == {1}
    assert {rank for (rank,) in slow} == set(range(times._workers))
    assert slow == [[rank for rank in range(times._workers) if times.ns(rank, k) == 30] for k in range(100)]


def test_stragglers_take_longer_for_a_while() -> None:
    slow = [{"rank": 1, "factor": 3, "from_iteration": 2, "to_iteration": 3}, {"rank": 1, "factor": 0.5}]
    times = ComputeTimes(given(workload__compute_ns=10, faults__stragglers=slow))
    assert [times.ns(1, iteration) for iteration in range(5)] == [5, 5, 15, 15, 5]
    assert [times.ns(0, iteration) for iteration in range(5)] == [10] * 5


@pytest.mark.parametrize("method", [method for method in SIMULATIONS if not METHODS[method].loses])
def test_an_iteration_waits_for_the_straggler_and_sums_stay_exact(method: str) -> None:
    """What an iteration takes longer is what the slow rank computes longer, or less: the others' parts are there."""
    even, _ = train(scenario(iterations=6, compute_ns=2 * MS), method, (9000, 4000), (0.5, 1.0))
    slow, replicas = train(straggler(1, factor=4, from_iteration=3), method, (9000, 4000), (0.5, 1.0))
    longer = [one.duration_ns - other.duration_ns for one, other in zip(slow.iterations, even.iterations, strict=True)]
    assert longer[:3] == [0, 0, 0]
    most = 8 * MS if method in ("atp", "esa") else 6 * MS  # what timers flush meanwhile comes by the server's one link
    assert all(4 * MS <= longer_ns <= most for longer_ns in longer[3:]), longer
    assert [record.compute_ns for record in slow.iterations] == [2 * MS] * 3 + [8 * MS] * 3
    assert slow.environment["compute_ns"] == [2 * MS, 5 * MS]
    for iteration in range(6):
        for both in zip(*(replicas.applied[rank, iteration] for rank in range(2)), strict=True):
            assert np.array_equal(*both)


@pytest.mark.parametrize("method", ["ring+wfbp", "switch+p3", "ps"])
def test_schedules_and_asynchronous_ranks_have_stragglers_too(method: str) -> None:
    mode = {"ps.mode": "asp", "workload.optimizer": "sgd"} if method == "ps" else {}
    values = {
        "topology.workers": 2,
        "topology.rate_bps": 10_000_000_000,
        "workload.iterations": 4,
        "workload.warmup_iterations": 1,
        "workload.batch_per_worker": 2,
        "workload.compute_ns": 5 * MS,
        "methods.sim": [method],
        **mode,
    }
    spent = []
    for stragglers in ([], [{"rank": 1, "factor": 5, "from_iteration": 2}]):
        slow = parse('name = "t"\ntitle = "t"\n', "t", {**values, "faults.stragglers": stragglers})
        result = run_method(slow, parse_method(method, virtual=True), None, lambda *_: None)  # type: ignore[arg-type]
        spent.append(sum(record.duration_ns for record in result.iterations))
    assert 36 * MS <= spent[1] - spent[0] <= 40 * MS
