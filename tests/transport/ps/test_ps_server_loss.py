"""Servers that die while calls are under way: their slices move, and every result has an undisturbed run's bits.

Arrays are scribbled on as soon as their caller has them back: what another worker lacks comes from nowhere else than
from what was retained.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchagg.calls.call_request import CallRequest
from switchagg.description import KINDS, ROOTED
from switchagg.errors import AggregationFailed
from tests.shared.ps_world import World
from transport.contracts.group_contract import Array
from transport.ps.config import BSP, PsConfig
from transport.ps.ps_calls import PsCallFinished
from transport.ps.ps_messages import AUTOMATIC, LAG_MAX, Head, PsMessageKind, unpack
from transport.ps.ps_server import PsServer
from transport.ps.server_loss import standing_from_bytes
from transport.ps.sharding import Sharding

SCRIBBLE = 77


def moving(workers: int, servers: int, **fields: object) -> PsConfig:
    return PsConfig(workers, servers, on_server_loss="move", **fields)  # type: ignore[arg-type]


class Program:
    """Random calls of all ranks, each rank's in an order of its own as far as keys allow, some under way at a time."""

    def __init__(self, world: World, seed: int, length: int = 24) -> None:
        self.world, self.workers = world, world.config.workers
        random = self.random = np.random.default_rng([11, seed])
        self.requests: list[CallRequest] = []
        self.inputs: list[list[Array]] = []
        for _ in range(length):
            kind = str(random.choice(["allreduce", *KINDS]))
            key = int(random.integers(3)) if kind == "allreduce" and random.random() < 0.5 else None
            root = int(random.integers(self.workers)) if kind in ROOTED else 0
            dtype, elements = str(random.choice(["float32", "int64"])), int(random.integers(0, 40))
            op = str(random.choice(["sum", "max", "avg"] if dtype == "float32" else ["sum", "max"]))
            self.requests.append(CallRequest(kind, op, key, int(random.integers(-5, 5)), root))
            elements = 0 if kind == "barrier" else elements
            self.inputs.append([(random.standard_normal(elements) * 9).astype(dtype) for _ in range(self.workers)])
        self.results: list[dict[int, Array]] = [{} for _ in range(self.workers)]
        self.under_way: list[dict[int, tuple[int, Array]]] = [{} for _ in range(self.workers)]
        self.next = [0] * self.workers
        world.on_finish = self.finished

    def submit(self, rank: int, at_most: int = 6) -> None:
        """The rank's next call, if its key is free."""
        number, open_calls = self.next[rank], self.under_way[rank]
        if number == len(self.requests) or len(open_calls) >= at_most:
            return
        key = self.requests[number].key
        if key is not None and any(self.requests[other].key == key for other, _ in open_calls.values()):
            return
        self.next[rank] += 1
        array = self.inputs[number][rank].copy()
        call = self.world.workers[rank].submit(self.requests[number], array, now_ns=self.world.now_ns)
        open_calls[id(call)] = number, array

    def finished(self, rank: int, ended: PsCallFinished) -> None:
        assert ended.failure is None, ended.failure
        number, array = self.under_way[rank].pop(id(ended.call))
        self.results[rank][number] = array.copy()
        array[:] = SCRIBBLE

    def run(self, deaths: dict[int, int]) -> None:
        """To the end. deaths: which server dies once so many things have happened; some workers notice it, at once or
        later, and the others hear of it from them."""
        late: list[tuple[int, int, int]] = []
        for step in range(100_000):
            for rank in range(self.workers):
                if self.random.random() < 0.3:
                    self.submit(rank)
            moved = self.world.step()
            if (server := deaths.get(step)) is not None:
                member = self.workers + server
                self.world.kill(member, noticed=False)
                ranks = [r for r in range(self.workers) if self.random.random() < 0.5] or [self.workers - 1]
                late += [(step + int(self.random.integers(40)), rank, member) for rank in ranks]
            for due in [notice for notice in late if notice[0] <= step]:
                late.remove(due)
                self.world.workers[due[1]].lost(due[2], "its process died", self.world.now_ns)
            if not moved and not late and all(len(done) == len(self.requests) for done in self.results):
                return
            assert self.world.workers[0].failure is None, self.world.workers[0].failure
        raise AssertionError(f"stuck: {[len(done) for done in self.results]} of {len(self.requests)} calls ended")

    def check(self) -> None:
        """All results have the bits that ranks in their order give."""
        bounds = [(r, r + 1) for r in range(self.workers)]
        for number, request in enumerate(self.requests):
            given_ = self.inputs[number]
            total = given_[0].copy()
            for array in given_[1:]:
                total = np.maximum(total, array) if request.op == "max" else total + array
            if request.op == "avg":
                total = (total / np.float32(self.workers)).astype(np.float32)
            shards = [slice(*(b * len(total) // self.workers for b in bound)) for bound in bounds]
            for rank in range(self.workers):
                expected, result = given_[rank].copy(), self.results[rank][number]
                if request.kind == "allreduce" or (request.kind == "reduce" and rank == request.root):
                    expected = total
                elif request.kind == "reduce_scatter":
                    expected[shards[rank]] = total[shards[rank]]
                elif request.kind == "broadcast":
                    expected = given_[request.root]
                elif request.kind == "all_gather":
                    for other, shard in enumerate(shards):
                        expected[shard] = given_[other][shard]
                assert result.tobytes() == expected.tobytes(), (number, request, rank)


@pytest.mark.parametrize("order", ["rank", "arrival"])
def test_calls_end_with_their_bits_whoever_dies_and_whenever(seed: int, order: str) -> None:
    random = np.random.default_rng([13, seed])
    workers, servers = int(random.integers(1, 5)), int(random.integers(2, 6))
    spares, deaths = int(random.integers(servers)), int(random.integers(1, servers))
    config = moving(workers, servers, spares=spares, slice_elements=5, order=order)
    program = Program(World(config, seed), seed)
    if order == "arrival":  # sums of floats have other bits each time, alike on all ranks; integers have one sum
        program.inputs = [[np.rint(array) + array.dtype.type(0) for array in arrays] for arrays in program.inputs]
    dying = random.choice(servers, deaths, replace=False)
    program.run({int(step): int(server) for step, server in zip(random.integers(1, 300, deaths), dying, strict=True)})
    program.check()
    for worker in program.world.workers:
        assert worker.counters["lost_servers"] == len(program.world.dead)
        assert worker.failure is None


def test_what_dies_at_any_moment_of_three_calls_costs_no_bit() -> None:
    """Every single moment, each server, both where only one worker notices and where all do."""
    moved = Counter[str]()
    for member in (3, 4):
        for moment in range(80):
            world = World(moving(3, 2, slice_elements=3), seed=moment)
            arrays = [[np.full(7, 1 << rank, np.int64) for _ in range(3)] for rank in range(3)]
            done: list[tuple[int, list[int]]] = []

            def finished(rank: int, ended: PsCallFinished, done: list[tuple[int, list[int]]] = done) -> None:
                done.append((rank, ended.call.target.tolist()))
                ended.call.target[:] = SCRIBBLE

            world.on_finish = finished
            for rank in range(3):
                for array in arrays[rank]:
                    world.call(rank, "allreduce", array)
            for _ in range(moment):
                world.step()
            world.kill(member, noticed=moment % 2 == 0)
            if moment % 2:
                world.workers[moment % 3].lost(member, "its process died", world.now_ns)
            world.run()
            assert sorted(done) == sorted((rank, [7] * 7) for rank in range(3) for _ in range(3))
            moved += world.workers[0].counters
    assert moved["moved_slices"] > 100


def test_a_server_that_is_silent_is_lost_and_what_it_says_later_is_ignored() -> None:
    world = World(moving(2, 2, slice_elements=3))
    arrays = [np.full(12, rank + 1, np.int64) for rank in range(2)]
    world.run()
    for rank in range(2):
        world.call(rank, "allreduce", arrays[rank])
    held = world.kill(2, noticed=False)
    assert held is None
    world.pass_time(16.0)
    assert [array.tolist() for array in arrays] == [[3] * 12] * 2
    assert [worker.lost_servers() for worker in world.workers] == [[2], [2]]
    assert world.workers[0].lost_servers() == []
    answer = Head(PsMessageKind.FAIL).pack()
    world.workers[0].receive(2, answer, b"it wakes", world.now_ns)
    assert world.workers[0].failure is None
    assert world.workers[0].counters["ignored"] == 1


def test_the_last_server_s_death_ends_the_job() -> None:
    world = World(moving(2, 2))
    for member in (2, 3):
        world.call(0, "allreduce", np.ones(3, np.int64))
        world.kill(member)
        world.run()
    assert "no server is left" in str(world.workers[0].failure)
    assert all(ended.failure is not None for ended in world.finished[0])


def test_a_worker_that_has_left_may_have_had_what_is_lost() -> None:
    """Rank 1 has its results and is gone; rank 0 lacks them, and the server is dead."""
    world = World(moving(2, 2))
    world.call(0, "allreduce", np.ones(3, np.int64))
    world.workers[0].lost(1, "it left", world.now_ns)
    world.kill(2)
    world.run()
    assert "rank 1 left, and may have had results that a lost server had" in str(world.workers[0].failure)


def test_no_more_is_retained_than_what_somebody_may_lack() -> None:
    """Of calls without a key what isn't known to be finished by all; of each key the last."""
    world = World(moving(3, 2, slice_elements=3))
    for number in range(50):
        for rank in range(3):
            world.call(rank, "allreduce", np.ones(7, np.int64), key=number % 5)
            world.call(rank, ("broadcast", "reduce", "all_gather", "barrier")[number % 4], np.ones(6, np.int64))
        world.run()
        for worker in world.workers:
            assert worker._losses.retained_calls <= 5 + 4
    world.pass_time(3.0)  # a heartbeat tells the rest
    assert all(worker._losses.retained_calls <= 5 + 1 for worker in world.workers)


def test_an_answer_says_how_far_behind_the_last_worker_is() -> None:
    world = World(moving(2, 2))
    lags: list[int] = []

    def note(sender: int, to: int, message: object) -> None:
        head = unpack(message.head)  # type: ignore[attr-defined]
        if head is not None and head.kind == PsMessageKind.ANSWER and head.key >= AUTOMATIC:
            lags.append(head.clock >> 16)
            assert head.clock & LAG_MAX == 2

    world.on_delivery = note
    for _ in range(3):
        for rank in range(2):
            world.call(rank, "allreduce", np.ones(3, np.int64))
    world.run()
    assert set(lags) == {0, 1, 2}


@given(st.data())
def test_slices_move_and_no_more_than_must(data: st.DataObject) -> None:
    """L11: every slice has a server that lives; one that lives keeps its slices, however many are lost and in whatever
    order; after one loss the others share its slices to within one of each call."""
    servers, spares = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 4))
    sharding = Sharding(servers, 10, spares=spares)
    key, elements = data.draw(st.integers(0, (1 << 64) - 1)), data.draw(st.integers(0, 900))
    slices = sharding.cut(key, elements)
    order = data.draw(st.permutations(range(servers + spares)))
    before = {part.number: part.server for part in slices}
    for count in range(1, servers + spares):
        lost = set(order[:count])
        after = {part.number: sharding.server_of(key, part, lost) for part in slices}
        assert not lost & set(after.values())
        assert all(after[number] == server for number, server in before.items() if server not in lost)
        if count == 1 and spares == 0:
            taken = Counter(after[number] for number, server in before.items() if server in lost)
            shares = [taken[server] for server in range(servers) if server not in lost]
            assert max(shares, default=0) - min(shares, default=0) <= 1
        elif count == 1 and order[0] < servers:
            assert {after[number] for number, server in before.items() if server in lost} <= set(
                range(servers, servers + spares)
            )
        before = after


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "ssp"},
        {"mode": "backup", "backups": 1},
        {"push_then_pull": True},
        {"on_worker_loss": "shrink"},
        {"servers": 1},
    ],
)
def test_what_can_not_move_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="on_server_loss move: of mode bsp and 2 servers or more"):
        PsConfig(**{"workers": 3, "servers": 2, "on_server_loss": "move", **fields})  # type: ignore[arg-type]


def test_calls_whose_state_a_server_alone_has_are_refused() -> None:
    world = World(moving(2, 2))
    with pytest.raises(ValueError, match="weights at servers don't move"):
        world.call(0, "init", np.ones(3, np.float32), key=0)
    with pytest.raises(ValueError, match="only allreduce takes a key"):
        world.call(0, "broadcast", np.ones(3, np.float32), key=0)
    with pytest.raises(ValueError, match="spares 2: 0 to 1"):
        moving(2, 2, spares=2)
    with pytest.raises(ValueError, match="spares 1: 0 to 0"):
        PsConfig(2, 2, BSP, spares=1)


@pytest.mark.parametrize("data", [b"", b"[]", b"[[9], []]", b'[["x"], []]', b"[[0], [[0, -1]]]", b"[[0], 5]", b"\xff"])
def test_a_standing_that_is_none_names_its_sender(data: bytes) -> None:
    with pytest.raises(ValueError, match="where it stands"):
        standing_from_bytes(data, 2)
    world = World(moving(2, 2))
    world.workers[0].receive(1, Head(PsMessageKind.SERVER_LOST).pack(), data, world.now_ns)
    failure = world.workers[0].failure
    assert isinstance(failure, AggregationFailed)
    assert "rank 1 sent nothing that says where it stands" in str(failure)


def test_a_result_is_held_only_where_slices_move() -> None:
    world = World(PsConfig(2, 2))
    world.run()
    server = world.servers[0]
    assert isinstance(server, PsServer)
    head = Head(PsMessageKind.HELD, 0, 0, 1, 3, 3, source=0xFFFF, sink=0xFFFF, root=0xFFFF, dtype=0)
    server.receive(0, head.pack(), bytes(12), world.now_ns)
    assert server.failure is not None
    assert "a result that no lost server had" in server.failure
