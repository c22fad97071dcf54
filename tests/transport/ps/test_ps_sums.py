"""BSP and backup workers: sums are exact, with the same bits in any order of arrival; nothing stays behind."""

from functools import reduce

import numpy as np
import pytest

from switchagg.calls.call_request import CallRequest
from switchagg.description import KINDS, ROOTED
from tests.shared.ps_world import World
from transport.contracts.group_contract import Array
from transport.meshes.mesh import OutgoingMessage
from transport.ps.config import BACKUP, PsConfig
from transport.ps.ps_arithmetic import NumpyArithmetic
from transport.ps.ps_calls import PsCallFinished
from transport.ps.ps_messages import AUTOMATIC, EVERYBODY, Head, PsMessageKind
from transport.ps.ps_server import PsServer
from transport.ps.ps_worker import PsWorker


def values(rank: int, elements: int, dtype: str = "float32", seed: int = 0) -> Array:
    random = np.random.default_rng([seed, rank, elements])
    if dtype.startswith("int"):
        return random.integers(-(2**30), 2**30, elements).astype(dtype)
    return (random.standard_normal(elements) * 10.0 ** random.integers(-3, 4, elements)).astype(dtype)


def in_rank_order(arrays: list[Array]) -> Array:
    return reduce(np.add, arrays)


def test_a_sum_is_added_in_rank_order_whatever_the_order_of_arrival(seed: int) -> None:
    random = np.random.default_rng(seed)
    workers, servers = int(random.integers(1, 6)), int(random.integers(1, 4))
    config = PsConfig(workers, servers, slice_elements=int(random.integers(1, 50)))
    world = World(config, seed, calculator=NumpyArithmetic() if seed % 2 else None)
    sizes = [int(random.integers(0, 300)) for _ in range(4)]
    dtypes = [str(random.choice(["float32", "float64", "int32", "int64"])) for _ in sizes]
    arrays = [[values(r, n, d, i) for i, (n, d) in enumerate(zip(sizes, dtypes, strict=True))] for r in range(workers)]
    expected = [in_rank_order([arrays[r][i].copy() for r in range(workers)]) for i in range(len(sizes))]
    for rank in range(workers):
        for key in random.permutation(len(sizes)):  # in any local order
            world.call(rank, "allreduce", arrays[rank][key], key=int(key), priority=int(key))
        for _ in range(int(random.integers(0, 30))):
            world.step()
    world.run()
    for rank in range(workers):
        assert [ended.failure for ended in world.finished[rank]] == [None] * len(sizes)
        for key in range(len(sizes)):
            assert arrays[rank][key].tobytes() == expected[key].tobytes()
    assert world.memory_is_free()


@pytest.mark.parametrize("order", ["rank", "arrival"])
@pytest.mark.parametrize("seed", range(10))
def test_all_kinds_one_after_another(seed: int, order: str) -> None:
    random = np.random.default_rng([7, seed])
    workers, elements = int(random.integers(1, 6)), int(random.integers(0, 40))
    world = World(PsConfig(workers, 2, slice_elements=7, order=order), seed)
    bounds = [r * elements // workers for r in range(workers + 1)]
    root = int(random.integers(workers))
    arrays = {kind: [values(r, elements, "int64") for r in range(workers)] for kind in (*KINDS, "max")}
    inputs = {kind: [array.copy() for array in arrays[kind]] for kind in arrays}
    for rank in range(workers):
        for kind in KINDS:
            array = np.empty(0, np.uint8) if kind == "barrier" else arrays[kind][rank]
            world.call(rank, kind, array, root=root if kind in ROOTED else 0)
        world.call(rank, "allreduce", arrays["max"][rank], "max")
    world.run()
    assert [sorted(kinds) for kinds in world.results()] == [sorted((*KINDS, "allreduce"))] * workers
    assert all(party.counters["ignored"] + party.counters["bad_heads"] == 0 for party in world.parties)
    total = np.sum(inputs["allreduce"], axis=0)
    for rank in range(workers):
        shard = slice(bounds[rank], bounds[rank + 1])
        assert (arrays["allreduce"][rank] == total).all()
        assert (arrays["reduce_scatter"][rank][shard] == total[shard]).all()
        assert (arrays["broadcast"][rank] == inputs["broadcast"][root]).all()
        assert rank != root or (arrays["reduce"][rank] == total).all()
        assert (arrays["max"][rank] == np.max(inputs["max"], axis=0)).all()
        for other in range(workers):
            theirs = slice(bounds[other], bounds[other + 1])
            assert (arrays["all_gather"][rank][theirs] == inputs["all_gather"][other][theirs]).all()
    assert world.memory_is_free()


def test_a_slice_is_answered_before_the_others_of_its_call_have_arrived() -> None:
    world = World(PsConfig(2, 1, slice_elements=10))
    arrays = [np.ones(30, np.float32), np.ones(30, np.float32)]
    world.call(0, "allreduce", arrays[0])
    world.run()
    world.call(1, "allreduce", arrays[1])
    world._collect()
    while world.wires[1, 2]:  # of rank 1: two slices arrive, the third doesn't yet
        if len(world.wires[1, 2]) == 1:
            break
        world._deliver(1, 2)
    held = world.wires.pop((1, 2))
    world.run()
    assert arrays[0].tolist() == [2.0] * 20 + [1.0] * 10
    world.wires[1, 2] = held
    world.run()
    assert arrays[0].tolist() == [2.0] * 30


def test_an_average_divides_by_the_workers_in_it() -> None:
    world = World(PsConfig(3, 2, slice_elements=5))
    arrays = [np.full(11, r, np.float32) for r in (1, 2, 6)]
    calls = [world.call(r, "allreduce", arrays[r], "avg") for r in range(3)]
    world.run()
    assert [array.tolist() for array in arrays] == [[3.0] * 11] * 3
    assert [call.count for call in calls] == [3, 3, 3]


def test_a_key_may_be_used_again_when_its_call_has_ended() -> None:
    world = World(PsConfig(2, 1))
    arrays = [np.ones(3, np.int32), np.ones(3, np.int32)]

    def again(rank: int, ended: PsCallFinished) -> None:
        assert ended.failure is None
        if len(world.finished[rank]) < 5:
            world.call(rank, "allreduce", arrays[rank], key=9)

    world.on_finish = again
    for rank in range(2):
        world.call(rank, "allreduce", arrays[rank], key=9)
    with pytest.raises(ValueError, match="key 9 is in use"):
        world.call(0, "allreduce", arrays[0], key=9)
    world.run()
    assert [array.tolist() for array in arrays] == [[32, 32, 32]] * 2


# ---- backup workers


def test_any_n_minus_b_complete_a_sum_and_all_get_the_same(seed: int) -> None:
    """Whoever is late; rounds go on; the late ones get what the others had."""
    random = np.random.default_rng([3, seed])
    workers = int(random.integers(2, 6))
    backups = int(random.integers(1, workers))
    rounds, elements = 6, 25
    config = PsConfig(workers, 2, mode=BACKUP, backups=backups, slice_elements=10)
    speeds = [float(speed) for speed in random.permutation([0.02, 0.1, 1, 1, 1, 1][:workers])]
    world = World(config, seed, weights=speeds)
    arrays = [np.zeros(elements, np.int64) for _ in range(workers)]
    results: list[list[Array]] = [[] for _ in range(workers)]

    def go_on(rank: int, ended: PsCallFinished) -> None:
        assert ended.failure is None
        results[rank].append(ended.call.target.copy())
        assert workers - backups <= ended.call.count <= workers
        if len(results[rank]) < rounds:
            arrays[rank][:] = 1 << rank
            world.call(rank, "allreduce", arrays[rank], key=4)

    world.on_finish = go_on
    for rank in range(workers):
        arrays[rank][:] = 1 << rank
        world.call(rank, "allreduce", arrays[rank], key=4)
    world.run()
    for round_ in range(rounds):
        of_round = [results[rank][round_] for rank in range(workers)]
        assert all((of_round[0] == one).all() for one in of_round)
        for low in (0, 8, 16):  # 4 slices; each has its own contributors
            assert workers - backups <= int(of_round[0][low]).bit_count() <= workers
    late, spared, pushes = (
        sum(server.counters[name] for server in world.servers) for name in ("late_pushes", "spared_pushes", "pushes")
    )
    in_sums = pushes - late - spared
    assert late + spared > 0
    assert spared == sum(worker.counters["pushes_saved"] for worker in world.workers)
    assert in_sums == sum(int(results[0][i][low]).bit_count() for i in range(rounds) for low in (0, 7, 13, 20))
    assert world.memory_is_free()


@pytest.mark.parametrize("missing", range(4))
def test_backup_doesnt_wait_for_the_last(missing: int) -> None:
    world = World(PsConfig(4, 1, mode=BACKUP, backups=1))
    arrays = [np.full(3, 10**r, np.int32) for r in range(4)]
    for rank in range(4):
        if rank != missing:
            world.call(rank, "allreduce", arrays[rank])
    world.run()
    total = 1111 - 10**missing
    assert all(arrays[r].tolist() == [total] * 3 for r in range(4) if r != missing)
    assert not world.finished[missing]
    assert world.workers[missing].behind == 1
    call = world.call(missing, "allreduce", arrays[missing])
    assert world.workers[missing].behind == 0
    world.run()
    assert arrays[missing].tolist() == [total] * 3
    assert call.count == 3
    assert world.servers[0].counters["spared_pushes"] == 1, "nothing but a head was sent"
    assert world.servers[0].counters["late_pushes"] == 0
    assert world.memory_is_free()


def test_a_push_under_way_when_its_round_ends_is_dropped_and_the_next_one_counts() -> None:
    """The result reaches the late worker before its push has reached the server; the pushes of two rounds follow."""
    config = PsConfig(2, 1, mode=BACKUP, backups=1)
    server, workers = PsServer(2, config), [PsWorker(rank, config) for rank in range(2)]

    def deliver(sender: PsWorker | PsServer, number: int) -> list[OutgoingMessage]:
        messages = sender.messages_to_send()
        for message in messages:
            receiver = server if message.to == 2 else workers[message.to]
            receiver.receive(number, message.head, bytes(message.data), 0)
            sender.on_sent(message.ticket)
        return messages

    for rank, worker in enumerate(workers):
        deliver(worker, rank)
    arrays = [np.full(3, rank + 1, np.int32) for rank in range(2)]
    for worker, array in zip(workers, arrays, strict=True):
        worker.submit(CallRequest("allreduce", key=7), array, now_ns=0)
    under_way = workers[1].messages_to_send()
    deliver(workers[0], 0)
    deliver(server, 2)
    workers[1].on_sent(under_way[0].ticket)
    assert [array.tolist() for array in arrays] == [[1, 1, 1]] * 2
    arrays[1][:] = 10
    workers[1].submit(CallRequest("allreduce", key=7), arrays[1], now_ns=0)
    newer = workers[1].messages_to_send()
    for message in (*newer, *under_way):  # in whatever order: heads say which round it is
        server.receive(1, message.head, bytes(message.data), 0)
    arrays[0][:] = 20
    deliver(server, 2)
    assert arrays[1].tolist() == [10, 10, 10]
    workers[0].submit(CallRequest("allreduce", key=7), arrays[0], now_ns=0)
    deliver(workers[0], 0)
    assert arrays[0].tolist() == [10, 10, 10]
    assert server.counters == {"pushes": 4, "slices": 2, "answers": 2, "late_pushes": 1, "spared_pushes": 1} | {
        "memory_bytes_most": server.counters["memory_bytes_most"]
    }
    assert not server._open


def test_a_push_without_values_for_a_round_that_goes_on_is_a_fault() -> None:
    world = World(PsConfig(3, 1, mode=BACKUP, backups=1))
    world.call(1, "allreduce", np.ones(3, np.int32))
    world.run()
    head = Head(
        PsMessageKind.PUSH, AUTOMATIC, slices=1, elements=3, slice_elements=3, dtype=2, source=EVERYBODY, sink=EVERYBODY
    )
    world.servers[0].receive(0, head._replace(root=EVERYBODY).pack(), b"", 0)
    assert "rank 0 calls" in str(world.servers[0].failure)
    assert "with 0 bytes of values" in str(world.servers[0].failure)


@pytest.mark.parametrize("seed", range(12))
def test_with_backups_a_sum_is_added_in_rank_order_too(seed: int) -> None:
    """Rank 0 is missing, so nothing may be added before the last of the others is there."""
    world = World(PsConfig(5, 1, mode=BACKUP, backups=1), seed)
    arrays = [values(rank, 20) for rank in range(5)]
    expected = in_rank_order([array.copy() for array in arrays[1:]])
    for rank in range(1, 5):
        world.call(rank, "allreduce", arrays[rank])
    world.run()
    assert all(array.tobytes() == expected.tobytes() for array in arrays[1:])


def test_barriers_wait_for_all_whatever_the_backups() -> None:
    world = World(PsConfig(3, 1, mode=BACKUP, backups=2))
    for rank in range(2):
        world.call(rank, "barrier", np.empty(0, np.uint8))
    world.run()
    assert world.results() == [[], [], []]
    world.call(2, "barrier", np.empty(0, np.uint8))
    world.run()
    assert world.results() == [["barrier"]] * 3


def test_results_kept_for_the_late_are_bounded() -> None:
    """Above the bound the fast wait for the late one again, and go on when it has caught up."""
    size = 8 * 10
    world = World(PsConfig(3, 1, mode=BACKUP, backups=1, retained_bytes=3 * size))
    for number in range(10):
        for rank in (0, 1):
            world.call(rank, "allreduce", np.full(10, number, np.int64))
    world.run()
    assert [len(kinds) for kinds in world.results()] == [3, 3, 0]
    for number in range(10):
        world.call(2, "allreduce", np.full(10, number, np.int64))
        world.run()
    assert [len(kinds) for kinds in world.results()] == [10, 10, 10]
    assert world.memory_is_free()


def test_a_late_worker_s_call_that_frees_memory_is_not_blocked() -> None:
    """It is what the memory waits for: nothing may deadlock, though another has left."""
    world = World(PsConfig(4, 1, mode=BACKUP, backups=2, retained_bytes=1))
    for rank in (0, 1):
        for key in (0, 1):
            world.call(rank, "allreduce", np.ones(4, np.int64), key=key)
    world.run()
    assert [len(kinds) for kinds in world.results()] == [1, 1, 0, 0]
    world.workers[3].leave()
    world.run()
    world.call(2, "allreduce", np.ones(4, np.int64), key=1)
    world.run()
    assert [len(kinds) for kinds in world.results()] == [2, 2, 1, 0]
