"""Training in virtual time: its timeline against closed form, exact averages, determinism across processes."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

from emulation.experiments.compare import problems
from emulation.results.results import document, summary, write_json
from emulation.results.timeline import communication_ns, union_ns
from emulation.scenario.bounds import bound
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario, find, load, parse
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.simulated_run import run_method, simulation_config
from emulation.sim.simulated_training import Training
from emulation.workloads.workload import Score
from switchagg.native import library
from tests.oracles.oracle_network import OracleConfig
from transport.group.method_name import parse as parse_method

METHODS = ["switch", "ring"]
FRAME_BYTES = 1440 + 20 + 42


def scenario(**overrides: Any) -> Scenario:
    """Two workers at 1 Gb/s, four iterations of which one is warm-up;

    overrides like rate_bps=… go to their table, ps__servers=… to [ps].
    """
    tables = {"rate_bps": "topology", "workers": "topology", "mtu_bytes": "topology"}
    tables |= dict.fromkeys(("loss", "duplicate", "reorder"), "faults")
    defaults = {"workers": 2, "rate_bps": 1_000_000_000, "iterations": 4, "warmup_iterations": 1, "evaluate_every": 2}
    values = {**defaults, "compute_ns": 900_000, "batch_per_worker": 8, **overrides}
    switch = ("retry_limit", "elements", "streams")
    placed = {
        key.replace("__", ".")
        if "__" in key
        else f"{tables.get(key, 'switch' if key in switch else 'workload')}.{key}": value
        for key, value in values.items()
        if value is not None
    }
    return parse('name = "t"\ntitle = "t"\nseed = 5\n', "t.toml", placed)


class IntegerBucket:
    def __init__(self, elements: int) -> None:
        self.elements = elements


class CountingReplicas:
    """Stands in for real training: small integer gradients, so that averages are exact; keeps what it is given."""

    def __init__(self, workers: int, sizes: tuple[int, ...], ready: tuple[float, ...]) -> None:
        self.buckets = [IntegerBucket(size) for size in sizes]
        self.losses = [0.0] * workers
        self.parameters = sum(sizes)
        self.gradient_bytes = 4 * sum(sizes)
        self.workers = workers
        self.applied: dict[tuple[int, int], list[np.ndarray]] = {}
        self.forward_fraction = 0.25
        self._ready = ready

    def ready_ns(self, compute_ns: int) -> list[int]:
        return [round(compute_ns * share) for share in self._ready]

    def gradients_of(self, rank: int, iteration: int) -> list[np.ndarray]:
        assert iteration == 0 or (rank, iteration - 1) in self.applied, "began before the iteration before was applied"
        self.losses[rank] = rank + iteration
        generator = np.random.default_rng([rank, iteration])
        return [generator.integers(-500, 500, bucket.elements).astype(np.float32) for bucket in self.buckets]

    def apply_to(self, rank: int, iteration: int, averaged: list[np.ndarray]) -> None:
        self.applied[rank, iteration] = [bucket.copy() for bucket in averaged]

    def evaluate(self) -> Score:
        return Score(0.5, 1.5)

    def parameter_hashes(self) -> list[str]:
        return ["same"] * self.workers


def train(
    given: Scenario, method: str, sizes: tuple[int, ...], ready: tuple[float, ...]
) -> tuple[Any, CountingReplicas]:
    replicas = CountingReplicas(given.topology.workers, sizes, ready)
    star = SIMULATIONS[method](simulation_config(given))
    training = Training(given, star, replicas, ComputeTimes(given), lambda *_: None)  # type: ignore[arg-type]
    training.run()
    return training.result(parse_method(method, virtual=True), []), replicas


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_every_rank_applies_the_exact_average_in_every_iteration(method: str, workers: int) -> None:
    given = scenario(workers=workers, loss=0.01)
    result, replicas = train(given, method, (5000, 1, 777), (0.5, 0.7, 1.0))
    assert len(replicas.applied) == workers * 4
    for (_, iteration), averaged in replicas.applied.items():
        gradients = [replicas.gradients_of(rank, iteration) for rank in range(workers)]
        for bucket, got in enumerate(averaged):
            total = np.sum([gradients[rank][bucket] for rank in range(workers)], axis=0, dtype=np.float32)
            assert np.array_equal(got, total / np.float32(workers))
    assert [record.loss for record in result.iterations] == [
        pytest.approx((workers - 1) / 2 + iteration) for iteration in range(4)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_communication_hides_behind_the_backward_pass_if_there_is_time(method: str) -> None:
    """36 kB at 1 Gb/s take under 1 ms: ready at half of 4 ms, they are back before the end."""
    result, _ = train(scenario(compute_ns=4_000_000), method, (9000,), (0.5,))
    assert [record.duration_ns for record in result.iterations] == [4_000_000] * 4
    assert [record.start_ns for record in result.iterations] == [0, 4_000_000, 8_000_000, 12_000_000]
    assert all(0 < record.communication_ns < 1_000_000 for record in result.iterations)
    assert summary(scenario(compute_ns=4_000_000), result)["exposed_communication_ns"]["median"] == 0


def test_the_timeline_of_the_switch_follows_its_closed_form() -> None:
    """Two buckets at 40 % and 100 %: both are sent back to back, and the iteration ends with the last chunk."""
    elements = 357 * 100  # E without a tag (V4)
    result, _ = train(scenario(compute_ns=1_000_000), "switch", (elements, elements), (0.4, 1.0))
    frame_ns = FRAME_BYTES * 8
    link_ns = (2 * 102 + 1) * frame_ns  # each bucket: description, scale chunk and 100 chunks; then the last way down
    for record in result.iterations:
        assert record.communication_ns == record.duration_ns - 400_000  # one bucket or the other, all the time
        assert link_ns <= record.communication_ns <= link_ns * 1.01 + 2 * frame_ns
        assert record.compute_ns == 1_000_000
    assert result.wire_iterations == 3
    assert result.wire_tx_bytes_per_rank == result.wire_rx_bytes_per_rank == [3 * 2 * 102 * FRAME_BYTES] * 2
    assert result.switch_counters["broadcast"] == 4 * 2 * 102
    assert result.retransmissions == 0


def test_the_wire_bytes_of_the_ring_are_its_share_framed() -> None:
    result, _ = train(scenario(workers=4), "ring", (400_000,), (1.0,))
    segments = 2 * 3 * 100_000 * 4 / 1448 * 3
    for sent in result.wire_tx_bytes_per_rank:
        assert segments * 1514 <= sent <= segments * 1514 * 1.01


@pytest.mark.parametrize("method", METHODS)
def test_evaluations_are_timed_at_the_end_of_their_iterations(method: str) -> None:
    result, _ = train(scenario(iterations=5), method, (1000,), (1.0,))
    assert [evaluation.iteration for evaluation in result.evaluations] == [1, 3, 4]
    ends_ns = [record.start_ns + record.duration_ns for record in result.iterations]
    assert [evaluation.time_ns for evaluation in result.evaluations] == [ends_ns[k] for k in (1, 3, 4)]


def test_without_compute_time_an_iteration_is_communication() -> None:
    result, _ = train(scenario(compute_ns=0), "switch", (3600,), (1.0,))
    for record in result.iterations:
        assert record.duration_ns == record.communication_ns > 0


def test_a_single_worker_trains() -> None:
    for method in METHODS:
        result, _ = train(scenario(workers=1), method, (1000,), (1.0,))
        assert len(result.iterations) == 4


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [
        ([], 0),
        ([(5, 9)], 4),
        ([(5, 9), (7, 12)], 7),
        ([(7, 8), (5, 9)], 4),
        ([(1, 2), (4, 6)], 3),
        ([(0, 3), (3, 5)], 5),
    ],
)
def test_overlapping_times_count_once(intervals: list[tuple[int, int]], covered: int) -> None:
    assert union_ns(intervals) == covered


@pytest.mark.parametrize(
    ("ranks", "late", "took"),
    [
        ([[(5, 9)]], 0, 4),
        ([[(5, 9)], [(7, 9)]], 0, 2),  # one computes longer
        ([[(0, 100)], [(20, 112)]], 0, 92),  # the last to begin isn't the last to end
        ([[(0, 100)], [(20, 112)], [(900, 901)]], 1, 92),
        ([[(0, 50), (60, 70)], [(64, 70), (2, 54)]], 0, 52 + 6),  # whatever the order of what ended
        ([[(0, 50)], [(0, 10), (20, 30)]], 0, 20),  # a pipeline's stages have transfers of their own
        ([[], []], 0, 0),
    ],
)
def test_communication_begins_and_ends_with_the_last_rank(
    ranks: list[list[tuple[int, int]]], late: int, took: int
) -> None:
    assert communication_ns(ranks, late) == took


def test_the_star_is_the_scenarios() -> None:
    config = simulation_config(scenario(mtu_bytes=9000, loss=0.25, retry_limit=7, switch__split_calls=1))
    assert config.split_calls == 1
    assert (config.link.rate_bps, config.link.loss, config.retry_limit) == (1_000_000_000, 0.25, 7)
    assert config.reliable.segment_bytes == 9000 - 52
    assert config.message_bytes % config.reliable.segment_bytes == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_dead_network_fails_in_one_line_that_names_a_rank(method: str) -> None:
    with pytest.raises(RunFailed, match=rf"^{method} in virtual time: job .*(rank|ranks:?) [01]") as failure:
        run_method(scenario(loss=1.0, retry_limit=2), parse_method(method), Path(), lambda *_: None)
    assert "\n" not in str(failure.value)


def test_compute_time_is_measured_once_and_written_down_if_the_scenario_has_none() -> None:
    given = scenario(compute_ns=None, iterations=2)
    results = [run_method(given, parse_method(method), Path(), lambda *_: None) for method in METHODS]
    times_ns = {record.compute_ns for result in results for record in result.iterations}
    assert len(times_ns) == 1
    assert times_ns.pop() > 0
    assert all(any("compute_ns was measured once" in note for note in result.notes) for result in results)


@pytest.mark.parametrize("method", [*METHODS, "switch~lanes16", "ring~lanes8", "gloo~bf16"])
def test_real_training_reaches_its_bound_and_keeps_ranks_identical(method: str) -> None:
    given = scenario(workers=3, compute_ns=1_000_000, iterations=3)
    calls: list[tuple[int, int]] = []
    result = run_method(given, parse_method(method), Path(), lambda done, total, note: calls.append((done, total)))
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert len(set(result.parameter_hash_per_rank)) == 1
    numbers = summary(given, result)
    assert 0.95 < numbers["share_of_bound"] <= 1
    assert bound(result.method, result.gradient_bytes, given.network).wire_bytes_per_rank == pytest.approx(
        numbers["wire_tx_bytes_per_rank_iteration"], rel=0.02
    )


def test_the_shipped_codecs_run_and_those_that_promise_it_agree() -> None:
    """All methods of `switchagg compare codecs`, shortened: seconds, since each trains its replicas."""
    short = {"workload.iterations": 2, "workload.warmup_iterations": 1, "workload.batch_per_worker": 2}
    given = load(find("codecs"), {**short, "topology.workers": 2, "topology.rate_bps": 10**9})
    results = [run_method(given, method, Path(), lambda *_: None) for method in given.methods.sim]
    built = document(given, "sim", results)
    assert problems(built) == []
    hashes = {str(result.method): result.parameter_hash_per_rank for result in results}
    assert hashes["switch~lanes8+ef"] == hashes["ring~lanes8+ef"] != hashes["ring"]
    assert hashes["switch~topk+ef"] == hashes["ring~topk+ef"]
    sent = {str(entry["method"]): entry["summary"]["wire_tx_bytes_per_rank_iteration"] for entry in built["methods"]}
    assert sent["gloo~bf16"] == pytest.approx(sent["gloo"] / 2, rel=0.02)
    assert sent["switch~lanes8+ef"] == pytest.approx(sent["switch"] / 4, rel=0.02)
    assert all(any("Codec" in note for note in one.notes) == bool(one.method.spec) for one in results)
    assert all(
        any("PyTorch's bf16 hook" in note for note in one.notes) == (str(one.method) == "gloo~bf16") for one in results
    )


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_sim_run import write_lossy_results
write_lossy_results(Path(sys.argv[2]))
"""


def write_lossy_results(path: Path) -> None:
    given = scenario(loss=0.005, iterations=3)
    results = [run_method(given, parse_method(method), Path(), lambda *_: None) for method in METHODS]
    write_json(path, document(given, "sim", results))


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """One of them is this; the other hashes differently."""
    theirs, ours = tmp_path / "theirs.json", tmp_path / "ours.json"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(theirs)],
        env={**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "77"},
        check=True,
    )
    write_lossy_results(ours)
    assert theirs.read_bytes() == ours.read_bytes()
    assert b'"retransmissions": 0' not in ours.read_bytes()  # the links did lose packets


def test_every_plane_that_auto_takes_gives_the_same_results_json(tmp_path: Path) -> None:
    names = ["reference"] + ([] if library.missing() else ["native"])
    texts = []
    for name in names:
        given = scenario(loss=0.02, duplicate=0.01, reorder=0.01, iterations=3)
        chosen = dataclasses.replace(given, switch=dataclasses.replace(given.switch, dataplane=name))
        result, _ = train(chosen, "switch", (5000, 1, 777), (0.5, 0.7, 1.0))
        write_json(tmp_path / name, document(given, "sim", [result]))
        texts.append((tmp_path / name).read_bytes())
    assert texts == [texts[0]] * len(names)
    assert texts[0].count(b'"dataplane": "auto",') == 2  # of the scenario and of the environment


def test_another_seed_gives_another_run() -> None:
    def lossy(seed: int) -> dict[str, Any]:
        given = parse(
            'name = "t"\ntitle = "t"\n',
            "t.toml",
            {
                "seed": seed,
                "faults.loss": 0.02,
                "topology.workers": 2,
                "workload.iterations": 3,
                "workload.warmup_iterations": 1,
                "workload.compute_ns": 1000,
            },
        )
        result, _ = train(given, "switch", (20_000,), (1.0,))
        entry: dict[str, Any] = document(given, "sim", [result])["methods"][0]
        return entry["environment"]["link_faults"]  # type: ignore[no-any-return]

    assert lossy(1) == lossy(1)
    assert lossy(1) != lossy(2)


def test_training_at_level_flow_has_the_weights_and_about_the_times_of_packets():
    exact, flow = (
        run_method(scenario(virtual_time__fidelity_level=level), parse_method("switch"), Path(), lambda *_: None)
        for level in ("packet", "flow")
    )
    assert flow.parameter_hash_per_rank == exact.parameter_hash_per_rank
    assert (flow.environment["fidelity_level"], "fidelity_level" in exact.environment) == ("flow", False)
    assert "at fidelity level flow" in flow.notes[0]
    for one, other in zip(flow.iterations, exact.iterations, strict=True):
        assert one.communication_ns == pytest.approx(other.communication_ns, rel=0.01)


@pytest.mark.parametrize("name", ["switch~lanes8+ef", "switch+p3", "ps"])
def test_the_network_and_its_oracle_write_the_same_results(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, method = (
        scenario(loss=0.01, reorder=0.01, iterations=2, switch__dataplane="native"),
        parse_method(name, virtual=True),
    )
    for number, kinds in enumerate((SimulationConfig.network_kinds, OracleConfig.network_kinds)):
        monkeypatch.setattr(SimulationConfig, "network_kinds", kinds)
        result = run_method(given, method, tmp_path, lambda *_: None)
        write_json(tmp_path / str(number), document(given, "sim", [result]))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
