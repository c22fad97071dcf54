"""SSP, ASP, DC-ASGD: weights at the servers follow a plain NumPy model; staleness is bounded; nothing deadlocks."""

from collections import defaultdict

import numpy as np
import pytest

from tests.shared.ps_world import World, changed
from transport.contracts.group_contract import Array
from transport.meshes.mesh import OutgoingMessage
from transport.ps.config import ASP, BACKUP, BSP, DC_ASGD, SSP, PsConfig
from transport.ps.ps_arithmetic import NumpyArithmetic
from transport.ps.ps_calls import PsCallFinished
from transport.ps.ps_messages import PsMessageKind, PsOp, unpack
from transport.ps.ps_server import PsServer

Place = tuple[int, int, int]
"""Server, key, slice."""


class Model:
    """SGD with momentum, weight decay and delay compensation, in NumPy, given the same gradients in the same order."""

    def __init__(self, config: PsConfig, weights: Array) -> None:
        self.config, self.weights = config, weights.copy()
        self.velocity = np.zeros_like(weights)
        self.backups = {rank: weights.copy() for rank in range(config.workers)}

    def push(self, rank: int, gradient: Array) -> Array:
        config, f = self.config, np.float32
        if config.mode == DC_ASGD:
            delay = self.weights - self.backups[rank]
            gradient = gradient + f(config.compensation) * gradient * gradient * delay
        if config.weight_decay:
            gradient = gradient + f(config.weight_decay) * self.weights
        if config.momentum:
            self.velocity = f(config.momentum) * self.velocity + gradient
            gradient = self.velocity
        self.weights = self.weights - f(config.learning_rate) * gradient
        self.backups[rank] = self.weights
        return self.weights


def train(world: World, iterations: int, elements: int, keys: int = 1, seed: int = 0) -> list[list[Array]]:
    """Each worker pushes gradients that depend on its weights; returns the weights it got, per worker."""
    config = world.config
    weights = [[np.full(elements, 1 + key, np.float32) for key in range(keys)] for _ in range(config.workers)]
    gradients = [[np.empty(elements, np.float32) for _ in range(keys)] for _ in range(config.workers)]
    targets = [np.random.default_rng([seed, rank]).standard_normal(elements) for rank in range(config.workers)]
    got: list[list[Array]] = [[] for _ in range(config.workers)]

    def push(rank: int, key: int) -> None:
        gradients[rank][key][:] = weights[rank][key] - targets[rank]
        world.call(rank, "push_pull", gradients[rank][key], target=weights[rank][key], key=key, priority=key)

    def go_on(rank: int, ended: PsCallFinished) -> None:
        assert ended.failure is None, ended.failure
        if ended.call.kind == "push_pull":
            got[rank].append(ended.call.target.copy())
        done = sum(one.call.key == ended.call.key for one in world.finished[rank]) - 1
        if done < iterations:
            push(rank, ended.call.key)
        elif len(world.finished[rank]) == keys * (iterations + 1):
            world.workers[rank].leave()

    world.on_finish = go_on
    for rank in range(config.workers):
        for key in range(keys):
            world.call(rank, "init", weights[rank][key], key=key)
    world.run()
    assert [len(one) for one in got] == [keys * iterations] * config.workers
    assert all(server.done and server.failure is None for server in world.servers)
    return got


@pytest.mark.parametrize("seed", range(24))
def test_weights_equal_those_of_a_model_given_the_same_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    config = PsConfig(
        int(random.integers(1, 5)),
        int(random.integers(1, 3)),
        mode=[ASP, DC_ASGD, SSP][seed % 3],
        staleness=2 if seed % 3 == 2 else 0,
        slice_elements=8,
        learning_rate=0.1,
        momentum=0.9 if seed % 2 else 0.0,
        weight_decay=0.01 if seed % 4 > 1 else 0.0,
        compensation=0.3,
    )
    world = World(config, seed, calculator=NumpyArithmetic() if seed % 5 == 0 else None)
    models: dict[Place, Model] = {}
    checked = 0

    def follow(sender: int, to: int, message: OutgoingMessage) -> None:
        nonlocal checked
        head = unpack(message.head)
        assert head is not None
        if head.kind == PsMessageKind.PUSH and head.op == PsOp.KEEP and sender == 0:
            models[to, head.key, head.number] = Model(config, np.frombuffer(bytes(message.data), np.float32))
        elif head.kind == PsMessageKind.PUSH and head.op == PsOp.GRADIENT:
            place = (to, head.key, head.number)
            models[place].push(sender, np.frombuffer(bytes(message.data), np.float32))
            checked += 1

    world.on_delivery = follow
    train(world, 5, 20, keys=2, seed=seed)
    for (to, key, number), model in models.items():
        kept = world.servers[to - config.workers]._weights[key, number]
        assert kept.weights.tobytes() == model.weights.tobytes()
    assert checked == config.workers * 5 * sum(1 for _ in models)


def test_an_answer_holds_the_weights_at_its_push() -> None:
    """Later gradients must not show in memory that is still on its way."""
    world = World(PsConfig(2, 1, mode=ASP, learning_rate=1.0))
    weights = [np.zeros(3, np.float32) for _ in range(2)]
    for rank in range(2):
        world.call(rank, "init", weights[rank], key=0)
    world.run()
    for rank in range(2):
        world.call(rank, "push_pull", np.ones(3, np.float32), target=weights[rank], key=0)
    world._collect()
    for rank in range(2):
        while world.wires.get((rank, 2)):
            world._deliver(rank, 2)
    world.run()
    assert [one.tolist() for one in weights] == [[-1.0] * 3, [-2.0] * 3]
    world.call(0, "pull", weights[0], key=0)
    world.run()
    assert weights[0].tolist() == [-2.0] * 3


def test_no_worker_is_ever_further_ahead_than_the_staleness(seed: int) -> None:
    """And all workers finish, whichever is slow."""
    random = np.random.default_rng([5, seed])
    workers, staleness = int(random.integers(1, 6)), int(random.integers(0, 4))
    config = PsConfig(workers, 2, mode=SSP, staleness=staleness, slice_elements=6)
    world = World(config, seed, weights=[float(speed) for speed in 10.0 ** random.uniform(-2, 0, workers)])
    begun: defaultdict[Place, list[int]] = defaultdict(lambda: [0] * workers)  # iterations whose weights were answered
    pushed: defaultdict[Place, list[int]] = defaultdict(lambda: [0] * workers)
    left: set[int] = set()
    most = 0

    def watch(sender: int, to: int, message: OutgoingMessage) -> None:
        nonlocal most
        head = unpack(message.head)
        assert head is not None
        if head.kind == PsMessageKind.LEAVE:
            left.add(sender)
        if head.op != PsOp.GRADIENT:
            return
        if head.kind == PsMessageKind.PUSH:
            pushed[to, head.key, head.number][sender] += 1
        elif head.kind == PsMessageKind.ANSWER:
            place = (sender, head.key, head.number)
            begun[place][to] += 1
            ahead = begun[place][to] - min([pushed[place][r] for r in range(workers) if r not in left] or [1 << 30])
            assert ahead <= staleness
            most = max(most, ahead)

    world.on_delivery = watch
    train(world, 8, 15, seed=seed)
    if workers > 1:
        assert most <= staleness


def test_workers_use_the_staleness_they_are_allowed() -> None:
    """A fast worker really gets ahead by s, and then waits."""
    world = World(PsConfig(2, 1, mode=SSP, staleness=3))
    weights = [np.zeros(3, np.float32) for _ in range(2)]
    for rank in range(2):
        world.call(rank, "init", weights[rank], key=0)
    world.run()
    for _ in range(3):
        world.call(0, "push_pull", np.ones(3, np.float32), target=weights[0], key=0)
        world.run()
    assert [len(kinds) for kinds in world.results()] == [4, 1]
    world.call(0, "push_pull", np.ones(3, np.float32), target=weights[0], key=0)
    world.run()
    assert [len(kinds) for kinds in world.results()] == [4, 1]
    world.call(1, "push_pull", np.ones(3, np.float32), target=weights[1], key=0)
    world.run()
    assert [len(kinds) for kinds in world.results()] == [5, 2]
    world.call(0, "push_pull", np.ones(3, np.float32), target=weights[0], key=0)
    world.run()
    assert [len(kinds) for kinds in world.results()] == [5, 2]
    world.workers[1].leave()  # who has left holds up nobody
    world.run()
    assert [len(kinds) for kinds in world.results()] == [6, 2]


@pytest.mark.parametrize("mode", [BSP, BACKUP])
def test_sums_can_be_applied_to_weights_too(mode: str) -> None:
    """One step with the mean of the gradients: the same weights for all, whichever worker was late."""
    config = PsConfig(3, 2, mode=mode, backups=int(mode == BACKUP), learning_rate=0.5, slice_elements=4)
    world = World(config, 1, weights=[1, 1, 0.05])
    got = train(world, 6, 9)
    for iteration in range(6):
        assert len({got[rank][iteration].tobytes() for rank in range(3)}) == 1
    assert world.memory_is_free()


@pytest.mark.parametrize("mode", [BSP, BACKUP, SSP, ASP, DC_ASGD])
def test_a_quadratic_converges(mode: str) -> None:
    """Mean of |w - target|² / 2 over the workers: least at the mean of the targets."""
    config = PsConfig(
        4,
        2,
        mode=mode,
        backups=int(mode == BACKUP),
        staleness=2 if mode == SSP else 0,
        slice_elements=5,
        learning_rate=0.05 if mode in (BSP, BACKUP) else 0.0125,
        momentum=0.5,
    )
    world = World(config, 3)
    got = train(world, 200, 12)
    best = np.mean([np.random.default_rng([0, rank]).standard_normal(12) for rank in range(4)], axis=0)
    tolerance = 0.5 if mode == BACKUP else 0.15  # backup workers leave out whom they like
    assert np.abs(got[0][-1] - best).max() < tolerance
    assert np.abs(1.0 - best).max() > 0.7  # from where it began


def test_gradients_before_weights_name_their_sender() -> None:
    world = World(PsConfig(2, 1, mode=ASP))
    world.call(1, "push_pull", np.ones(3, np.float32), target=np.ones(3, np.float32), key=8)
    world.run()
    failure = world.finished[1][0].failure
    assert failure is not None
    assert "rank 1 calls push_pull key 8 with 3 float32, but with no weights before" in str(failure)
    assert failure.missing == (1,)


def test_weights_can_be_set_again() -> None:
    world = World(PsConfig(2, 1, mode=DC_ASGD, momentum=0.9))
    weights = [np.zeros(3, np.float32) for _ in range(2)]
    for value in (5.0, 7.0):
        for rank in range(2):
            weights[rank][:] = value + rank
            world.call(rank, "init", weights[rank], key=2)
        world.run()
        assert [one.tolist() for one in weights] == [[value] * 3] * 2
        world.call(0, "push_pull", np.ones(3, np.float32), target=weights[0], key=2)
        world.run()
        assert weights[0][0] == np.float32(value) - np.float32(0.01)


def test_servers_that_adopt_take_the_workers_configuration() -> None:
    config = PsConfig(2, 2, mode=SSP, staleness=1, learning_rate=0.25, slice_elements=4)
    world = World(config, adopt=True)
    train(world, 3, 10)
    assert [server.config for server in world.servers] == [config, config]
    assert isinstance(world.parties[-1], PsServer)
    other = World(config, adopt=True, configs={1: changed(config, staleness=2)})
    other.call(0, "barrier", np.empty(0, np.uint8))
    other.run()
    failure = str(other.finished[0][0].failure)
    assert "rank 0 has staleness 1, rank 1 has staleness 2" in failure or (
        "rank 1 has staleness 2, rank 0 has staleness 1" in failure
    )


def test_a_gradient_s_delay_is_how_many_others_came_between() -> None:
    world = World(PsConfig(2, 1, mode=ASP))
    weights = [np.zeros(3, np.float32) for _ in range(2)]

    def push(rank: int) -> None:
        world.call(rank, "push_pull", np.ones(3, np.float32), target=weights[rank], key=0)
        world.run()

    for rank in range(2):
        world.call(rank, "init", weights[rank], key=0)
    world.run()
    for rank in (0, 0, 0, 1, 0):
        push(rank)
    assert [dict(worker.counters) for worker in world.workers] == [
        {"pushed": 4, "delays": 1, "delay_most": 1},
        {"pushed": 1, "delays": 3, "delay_most": 3},
    ]
    world.call(1, "pull", weights[1], key=0)
    world.run()
    push(1)
    assert world.workers[1].counters["delays"] == 3, "a pull brings weights too"
