"""Training against servers that keep weights, in virtual time: each gradient is a step, at weights of its own age."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch")

import torch
from test_sim_run import scenario

from emulation.results.results import MethodResult, differing, document
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import Scenario
from emulation.sim.asynchronous import AsynchronousTraining
from emulation.sim.network import ps_simulation
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.simulated_run import run_method, simulation_config
from emulation.sim.simulated_training import Training
from emulation.workloads.replicas import Replicas
from emulation.workloads.workload import Score, build_workload
from transport.group.method_name import parse
from transport.meshes.mesh import Buffer, OutgoingMessage
from transport.ps import colocated
from transport.ps.ps_arithmetic import NumpyArithmetic, Step
from transport.ps.ps_messages import HEAD_BYTES, PsMessageKind, PsOp, unpack
from transport.ps.ps_worker import PsWorker
from transport.ps.sharding import Sharding

SIZES = (9000, 3, 700)
RATE = 0.25
MODES = {"ssp": {"ps__staleness": 2}, "asp": {}, "dc_asgd": {}}


class Lines:
    """Stands in for a model: weights of small integers over powers of two, whose sums are exact.

    pull: how much a gradient depends on the weights; with 0 the order of steps doesn't matter.
    """

    def __init__(self, workers: int, pull: float) -> None:
        self.buckets = [SimpleNamespace(elements=size, parameters=(key,)) for key, size in enumerate(SIZES)]
        self.forward_fraction = 0.25
        self.losses = [0.0] * workers
        self.parameters, self.gradient_bytes = sum(SIZES), 4 * sum(SIZES)
        self.weights = [[np.full(size, 4.0 + rank, np.float32) for size in SIZES] for rank in range(workers)]
        self.scored: list[np.ndarray] = []
        self._workers, self._pull = workers, pull

    def ready_ns(self, compute_ns: int) -> list[int]:
        return [compute_ns * share // 3 for share in (1, 2, 3)]

    def weights_of(self, rank: int) -> list[np.ndarray]:
        return self.weights[rank]

    def gradients_of(self, rank: int, iteration: int) -> list[np.ndarray]:
        random = np.random.default_rng([rank, iteration])
        return [
            (self._pull * weights + random.integers(-4, 5, len(weights))).astype(np.float32)
            for weights in self.weights[rank]
        ]

    def apply_to(self, rank: int, iteration: int, averaged: list[np.ndarray]) -> None:
        for weights, gradient in zip(self.weights[rank], averaged, strict=True):
            weights -= np.float32(RATE) * gradient

    def evaluate(self) -> Score:
        self.scored.append(self.weights[0][0].copy())
        return Score(0.5, 1.5)

    def parameter_hashes(self) -> list[str]:
        return [str([array.tobytes() for array in arrays]) for arrays in self.weights]


def train(given: Scenario, pull: float = 0.0) -> tuple[MethodResult, Lines, AsynchronousTraining]:
    replicas = Lines(given.topology.workers, pull)
    config = simulation_config(given)
    rate = {"learning_rate": RATE / given.topology.workers}
    simulation = PsSimulation(replace(config, ps={**config.ps, **rate}))
    training = AsynchronousTraining(given, simulation, replicas, ComputeTimes(given), lambda *_: None)  # type: ignore[arg-type]
    training.run()
    return training.result(parse("ps"), []), replicas, training


def of_mode(mode: str, **more: Any) -> Scenario:
    return scenario(ps__mode=mode, workload__optimizer="sgd", methods__sim=["ps"], **{**MODES[mode], **more})


@pytest.mark.parametrize("mode", ["ssp", "asp"])
@pytest.mark.parametrize("servers", [0, 2])
def test_every_gradient_is_applied_once_whatever_links_do(mode: str, servers: int) -> None:
    given = of_mode(mode, workers=4, loss=0.02, duplicate=0.02, reorder=0.02, ps__servers=servers)
    result, replicas, training = train(given)
    assert training.simulation.retransmissions() > 0
    for key, size in enumerate(SIZES):
        steps = sum(replicas.gradients_of(rank, k)[key] for rank in range(4) for k in range(4))
        expected = np.full(size, 4.0, np.float32) - np.float32(RATE / 4) * steps
        for rank in range(4):
            assert np.array_equal(replicas.weights[rank][key], expected), "rank 0's weights, and all steps"
    assert len(set(result.parameter_hash_per_rank)) == 1
    assert np.array_equal(replicas.scored[-1], replicas.weights[0][0]), "what all have in the end is evaluated"


def test_without_staleness_it_is_synchronous_training() -> None:
    """Bit for bit where sums are exact, as here: else they differ by the order of additions."""
    _, replicas, training = train(of_mode("ssp", workers=4, ps__staleness=0, iterations=5), pull=0.5)
    given = scenario(workers=4, iterations=5)
    synchronous = Lines(4, 0.5)
    for rank in range(1, 4):
        for weights, first in zip(synchronous.weights[rank], synchronous.weights[0], strict=True):
            weights[:] = first
    Training(given, PsSimulation(simulation_config(given)), synchronous, ComputeTimes(given), lambda *_: None).run()  # type: ignore[arg-type]
    for rank in range(4):
        for mine, theirs in zip(replicas.weights[rank], synchronous.weights[rank], strict=True):
            assert np.array_equal(mine, theirs)
    assert training.facts()["gradient_delay_most"] == 3, "of one round"


def test_staleness_bounds_how_old_weights_may_be() -> None:
    for staleness in (0, 1, 3):
        given = of_mode("ssp", workers=3, ps__staleness=staleness, iterations=12, loss=0.05)
        facts = train(given)[2].facts()
        assert 0 < facts["gradient_delay_mean"] <= facts["gradient_delay_most"] <= 2 * (2 * staleness + 1)


@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_plain_sgd(mode: str, tmp_path: Path) -> None:
    given = of_mode(mode, workers=1, workload__name="digits", iterations=3, evaluate_every=1)
    result = run_method(given, parse("ps"), tmp_path, lambda *_: None)
    alone = build_workload("digits", given.seed, 0, 1, 8, 3)
    parameters = [parameter.detach().numpy() for parameter in alone.model.parameters()]
    scores = []
    for iteration in range(3):
        alone.loss(alone.model, iteration).backward()  # type: ignore[no-untyped-call]
        for parameter, weights in zip(alone.model.parameters(), parameters, strict=True):
            assert parameter.grad is not None
            step = Step(alone.task.sgd_learning_rate, 0.0, 0.0, 0.0)
            NumpyArithmetic().step(step, weights.reshape(-1), None, None, parameter.grad.numpy().reshape(-1))
            parameter.grad = None
        scores.append(alone.evaluate())
    assert result.parameter_hash_per_rank == [alone.parameter_sha256()]
    assert [(one.accuracy, one.loss) for one in result.evaluations] == [(s.accuracy, s.loss) for s in scores]
    assert (result.environment["gradient_delay_mean"], result.environment["gradient_delay_most"]) == (0, 0)
    torch_s = build_workload("digits", given.seed, 0, 1, 8, 3, "sgd")
    for iteration in range(3):
        torch_s.loss(torch_s.model, iteration).backward()  # type: ignore[no-untyped-call]
        torch_s.step(iteration)
    for mine, theirs in zip(torch_s.model.parameters(), parameters, strict=True):
        torch.testing.assert_close(mine.detach(), torch.from_numpy(theirs))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_scenario_gives_the_same_results(mode: str) -> None:
    given = of_mode(mode, workers=3, iterations=6, loss=0.02, evaluate_every=2)
    first, second = (train(given, pull=0.25) for _ in range(2))
    assert first[0] == second[0]
    assert [score.iteration for score in first[0].evaluations] == [1, 3, 5]
    times = [score.time_ns for score in first[0].evaluations]
    assert times == sorted(times)
    last = first[0].iterations[-1]
    assert times[-1] == last.start_ns + last.duration_ns
    assert first[0].iterations[0].start_ns == 0


def test_time_counts_from_when_all_have_the_weights() -> None:
    result, _, training = train(of_mode("asp", workers=2, iterations=3))
    assert training.begun_ns > 0
    assert result.iterations[0].duration_ns < 900_000 + 2_000_000
    assert min(span.start_ns for span in result.timeline) < 10_000_000


def test_a_rank_does_not_wait_for_others_without_a_bound() -> None:
    """After the warm-up, when all wait for each other once: then a rank's iterations are its own."""
    given = of_mode("asp", workers=2, iterations=12, warmup_iterations=2)
    replicas = Lines(2, 0.0)
    training = AsynchronousTraining(
        given, PsSimulation(simulation_config(given)), replicas, ComputeTimes(given), lambda *_: None
    )  # type: ignore[arg-type]
    slow = training.clocks[1]
    original = slow._launch
    slow._launch = lambda frame, index, to: training.simulation.network.schedule(  # type: ignore[method-assign]
        training.simulation.network.now_ns + 5_000_000, lambda *_: original(None, index, 0)
    )
    training.run()
    fast = training.clocks[0]
    assert fast.ends_ns[1] < slow.ends_ns[1] < fast.ends_ns[2]
    assert fast.ends_ns[-1] < slow.ends_ns[5]


@pytest.mark.parametrize(("mode", "servers"), [("ssp", 2), ("asp", 0)])
def test_gradients_are_coded_on_their_way_and_weights_are_not(
    mode: str, servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of every message of a run, and of the links, beside the bounds."""
    name, told = parse("ps~lanes8+ef"), Counter[PsMessageKind]()

    class Counted(PsWorker):
        def messages_to_send(self) -> list[OutgoingMessage]:
            messages = super().messages_to_send()
            for head, data in ((unpack(message.head), message.data) for message in messages):
                assert head is not None
                told[head.kind] += len(data) * (head.op == PsOp.GRADIENT)
            return messages

        def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
            told[PsMessageKind.ANSWER] += len(data) * (unpack(head).op == PsOp.GRADIENT)  # type: ignore[union-attr]
            super().receive(sender, head, data, now_ns)

    for module in (ps_simulation, colocated):
        monkeypatch.setattr(module, "PsWorker", Counted)
    given = of_mode(mode, workers=2, workload__name="digits", iterations=3, warmup_iterations=1, ps__servers=servers)
    results = [run_method(given, name, tmp_path, lambda *_: None)]
    sizes = [parameter.numel() for parameter in build_workload("digits", 1, 0, 1, 8).model.parameters()]
    sharding = Sharding(
        servers or 2, simulation_config(given).message_bytes // 4 - HEAD_BYTES // 4, tuple(4 * size for size in sizes)
    )
    pushed = 0
    for key, size in enumerate(sizes):
        for part in sharding.cut(key, size):
            elements = part.high - part.low
            pushed += 4 * elements if size < 1024 else 4 * 361 * -(-elements // 1440)
    assert told[PsMessageKind.PUSH] == 2 * 3 * pushed
    assert told[PsMessageKind.ANSWER] == 2 * 3 * 4 * sum(sizes)
    results.append(run_method(given, parse("ps"), tmp_path, lambda *_: None))
    built = document(given, "sim", results)
    assert differing(built) == [], "nothing is promised"
    coded, plain = (entry["summary"] for entry in built["methods"])
    assert coded["codec"] == {
        "name": "lanes8", "bits_per_value": 8.0, "bits_per_weight": 32.0, "adds": True, "feedback": "ef", "lossy": True,
    }  # fmt: skip
    for way in ("tx", "rx"):
        counted = f"wire_{way}_bytes_per_rank_iteration"
        least = coded["bound"].get(f"wire_{way}_bytes_per_rank", coded["bound"]["wire_bytes_per_rank"])
        assert 0 < least <= coded[counted] < 1.2 * least
        if servers:
            of_servers = coded["bound_wire_bytes_per_server" if way == "tx" else "bound_wire_rx_bytes_per_server"]
            assert of_servers <= coded[f"wire_{way}_bytes_per_server_iteration"] < 1.2 * of_servers
    assert (
        coded["wire_tx_bytes_per_rank_iteration"]
        < (0.4 if servers else 0.7) * plain["wire_tx_bytes_per_rank_iteration"]
    )
    assert any("Weights come back as they are." in note for note in results[0].notes)


def test_a_link_that_loses_everything_ends_it_and_names_job_and_rank(tmp_path: Path) -> None:
    given = of_mode("asp", workers=2, loss=1.0, retry_limit=2, workload__name="digits")
    with pytest.raises(RunFailed, match=r"ps in virtual time: job ps.*rank [01]"):
        run_method(given, parse("ps"), tmp_path, lambda *_: None)


def test_replicas_lend_the_memory_their_models_compute_with() -> None:
    replicas = Replicas("digits", 1, 2, 4, bucket_bytes=1)
    for weights in replicas.weights_of(1):
        weights[:] = 0
    zero, other = replicas.parameter_hashes()[1], replicas.parameter_hashes()[0]
    assert zero != other
    assert replicas.workloads[1].evaluate().loss == pytest.approx(np.log(10), rel=1e-5)
