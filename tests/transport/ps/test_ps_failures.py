"""Deaths at every moment, members that don't fit together, garbage: named at once, and nothing ever hangs."""

import re
from collections import deque

import numpy as np
import pytest

from tests.shared.ps_world import World, changed
from transport.contracts.group_contract import Array
from transport.meshes.mesh import OutgoingMessage
from transport.ps.config import ASP, BACKUP, BSP, SSP, PsConfig, config_from_bytes
from transport.ps.ps_calls import PsCallFinished
from transport.ps.ps_messages import EVERYBODY, Head, PsMessageKind, PsOp, unpack
from transport.ps.ps_server import PsServer

LONG_S = 16.0  # above dead_after_s and what an outage so long costs beside
WORKERS, SERVERS = 3, 2


def small(**fields: object) -> PsConfig:
    return changed(PsConfig(WORKERS, SERVERS, slice_elements=3), **fields)


def sums(world: World) -> list[list[Array]]:
    """Every worker begins three calls; returns their arrays."""
    arrays = [[np.full(7, 1 << rank, np.int64) for _ in range(3)] for rank in range(WORKERS)]
    for rank in range(WORKERS):
        for array in arrays[rank]:
            world.call(rank, "allreduce", array)
    return arrays


def moments() -> int:
    """How many things happen in all."""
    world = World(small())
    sums(world)
    count = 0
    while world.step():
        count += 1
    return count


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("member", [0, 2, 3])
def test_a_death_at_any_moment_ends_the_job_and_is_named(member: int, noticed: bool) -> None:
    name = f"rank {member}" if member < WORKERS else f"server {member - WORKERS}"
    failures = 0
    for moment in range(0, moments(), 1 if noticed else 5):
        world = World(small(), seed=moment)
        if not noticed:
            world.run()  # all have heard of each other
        arrays = sums(world)
        for _ in range(moment):
            world.step()
        world.kill(member, noticed=noticed)
        world.pass_time(LONG_S)
        for rank in {0, 1, 2} - {member}:
            ended = world.finished[rank]
            assert len(ended) == 3
            for one in ended:
                if one.failure is None:
                    assert one.call.target.tolist() == [7] * 7
                else:
                    failures += 1
                    assert f"{name} is lost" in str(one.failure)
                    assert one.failure.missing == ((member,) if member < WORKERS else ())
            assert world.workers[rank].failure is not None
            world.call(rank, "allreduce", arrays[rank][0])
            world.run()
            assert world.finished[rank][-1].failure is not None
        for server in world.servers:
            assert server.done or server.member == member
            assert server._pool.used_bytes == 0 or server.member == member
    assert failures > 20


@pytest.mark.parametrize("mode", [BSP, BACKUP, SSP, ASP])
def test_a_job_shrinks_at_any_moment(mode: str) -> None:
    """The others get sums of those that are left, the same on all; SSP waits for the living only."""
    weights_mode = mode in (SSP, ASP)
    config = small(mode=mode, on_worker_loss="shrink", backups=int(mode == BACKUP), staleness=int(mode == SSP))
    for moment in range(0, 2 * moments(), 5):
        world = World(config, seed=moment)
        if not moment % 2:
            world.run()
        if weights_mode:
            push_three_times(world)
        else:
            arrays = sums(world)
        for _ in range(moment):
            world.step()
        world.kill(1, noticed=bool(moment % 2))
        world.pass_time(LONG_S)
        for rank in (0, 2):
            assert [one.failure for one in world.finished[rank]] == [None] * (4 if weights_mode else 3)
            assert world.workers[rank].count == 2
            assert len(world.workers[rank].notices) == 1
        if mode == BSP:
            for mine, other in zip(arrays[0], arrays[2], strict=True):
                assert mine.tolist() == other.tolist()
                assert set(mine.tolist()) <= {5, 7}
        assert all("rank 1 is lost" in server.notices[0] for server in world.servers)
        for rank in (0, 2):
            world.workers[rank].leave()
        world.run()
        assert all(server.done and server.failure is None for server in world.servers)
        assert world.memory_is_free()


def push_three_times(world: World) -> None:
    weights = [np.zeros(7, np.float32) for _ in range(WORKERS)]

    def go_on(rank: int, ended: PsCallFinished) -> None:
        if ended.failure is None and len(world.finished[rank]) < 4:
            world.call(rank, "push_pull", np.ones(7, np.float32), target=weights[rank], key=3)

    world.on_finish = go_on
    for rank in range(WORKERS):
        world.call(rank, "init", weights[rank], key=3)


@pytest.mark.parametrize("moment", range(0, 60, 4))
def test_a_lost_source_ends_the_job_even_if_it_may_shrink(moment: int) -> None:
    world = World(small(on_worker_loss="shrink"), seed=moment)
    world.kill(0)
    for rank in (1, 2):
        world.call(rank, "broadcast", np.zeros(7, np.int64), root=0)
    world.pass_time(LONG_S)
    for rank in (1, 2):
        assert "rank 0 left the job, but broadcast number 0 from rank 0" in str(world.finished[rank][0].failure)


def test_a_member_that_passes_a_failure_on_is_not_blamed() -> None:
    """One server has lost rank 2; the other learns of it from rank 0."""
    world = World(small())
    world.run()
    world._deliver_raw(3, 0, Head(PsMessageKind.FAIL, root=2).pack(), b"rank 2 is lost")
    world.run()
    failure = world.workers[1].failure
    assert failure is not None
    assert failure.missing == (2,)
    assert "server 1 ends the job: rank 0 gave up: server 0 ends the job: rank 2 is lost" in str(failure)


def test_a_worker_that_leaves_early_is_named() -> None:
    world = World(small())
    world.workers[1].leave()
    sums_of = [np.ones(7, np.int64) for _ in range(WORKERS)]
    for rank in (0, 2):
        world.call(rank, "allreduce", sums_of[rank])
    world.run()
    for rank in (0, 2):
        failure = world.finished[rank][0].failure
        assert "rank 1 left the job, but allreduce (sum) number 0 with 7 int64 waits for it" in str(failure)
        assert failure is not None
        assert failure.missing == (1,)


def test_a_job_that_may_shrink_continues_when_a_worker_leaves() -> None:
    world = World(small(on_worker_loss="shrink"))
    arrays = [np.full(7, 1 << rank, np.float32) for rank in range(WORKERS)]
    world.call(0, "allreduce", arrays[0], "avg")
    world.run()
    world.workers[1].leave()
    world.run()
    call = world.call(2, "allreduce", arrays[2], "avg")
    world.run()
    assert arrays[0].tolist() == arrays[2].tolist() == [2.5] * 7
    assert call.count == 2


def test_a_call_times_out_although_all_members_are_alive() -> None:
    world = World(small(call_timeout_s=30.0))
    for rank in (0, 2):
        world.call(rank, "allreduce", np.ones(7, np.int64), key=5)
    world.pass_time(29)
    assert world.results() == [[], [], []]
    assert all(worker.failure is None for worker in world.workers)
    world.pass_time(3)
    for rank in (0, 2):
        assert "allreduce (sum) key 5 with 7 int64 has waited 30 s for rank 1" in str(world.finished[rank][0].failure)


def test_a_worker_too_far_ahead_waits_no_longer_than_the_timeout() -> None:
    world = World(PsConfig(2, 1, mode=SSP, call_timeout_s=30.0))
    weights = np.zeros(7, np.float32)
    for rank in range(2):
        world.call(rank, "init", weights.copy(), key=0)
    world.run()
    world.call(0, "push_pull", np.ones(7, np.float32), target=weights, key=0)
    world.pass_time(32)
    assert "push_pull key 0 with 7 float32 has waited 30 s for rank 1" in str(world.finished[0][-1].failure)


def test_a_silent_link_to_a_living_server_times_out() -> None:
    """The server never receives the call: the worker's own timeout ends it."""
    world = World(PsConfig(1, 1, call_timeout_s=20.0))
    world.call(0, "allreduce", np.ones(7, np.int64))
    world._collect()
    world.wires[0, 1] = type(world.wires[0, 1])(
        message
        for message in world.wires[0, 1]
        if unpack(message.head)[0] != PsMessageKind.PUSH  # type: ignore[index]
    )
    world.pass_time(50)
    assert "waiting for server 0" in str(world.finished[0][0].failure)


def test_a_stall_of_our_own_process_fails_no_member() -> None:
    server = PsServer(1, PsConfig(1, 1, heartbeat_s=1.0, dead_after_s=5.0))
    server.handle_timer(0)
    server.receive(0, Head(PsMessageKind.BEAT).pack(), b"", 1)
    server.handle_timer(100_000_000_000)
    assert server.failure is None
    for second in range(101, 104):
        server.handle_timer(second * 1_000_000_000)
    assert server.failure is None
    for second in range(104, 120):
        server.handle_timer(second * 1_000_000_000)
    assert server.failure == "rank 0 is lost: silent for 5 s"


def test_an_outage_below_the_limit_fails_no_member() -> None:
    """A heartbeat, an outage of 4.5 s right after it, and TCP, which brings the next one two seconds later."""
    server = PsServer(1, PsConfig(1, 1, heartbeat_s=1.0, dead_after_s=5.0))
    for tenth in range(200):
        server.handle_timer(tenth * 100_000_000)
        if not 10 < tenth < 10 + 10 + 45 + 20:
            server.receive(0, Head(PsMessageKind.BEAT).pack(), b"", tenth * 100_000_000)
    assert server.failure is None


def test_a_member_that_still_waits_for_others_to_connect_isnt_dead() -> None:
    """Two that have met all others may start while these still wait for a third."""
    server = PsServer(1, PsConfig(1, 1, heartbeat_s=1.0, dead_after_s=5.0))
    for second in range(300):
        server.handle_timer(second * 1_000_000_000)
    assert server.failure is None
    server.receive(0, Head(PsMessageKind.BEAT).pack(), b"", 300_000_000_000)
    for second in range(300, 310):
        server.handle_timer(second * 1_000_000_000)
    assert server.failure is not None


# ---- what doesn't fit together

MIXED = [
    (("allreduce", 7, "float32", {}), ("allreduce", 8, "float32", {}), "with 7 float32", "with 8 float32"),
    (("allreduce", 7, "float32", {}), ("allreduce", 7, "int32", {}), "with 7 float32", "with 7 int32"),
    (("allreduce", 7, "float32", {}), ("allreduce", 7, "float32", {"op": "max"}), "(sum)", "(max)"),
    (("allreduce", 7, "float32", {}), ("reduce_scatter", 7, "float32", {}), "allreduce", "reduce_scatter"),
    (("all_gather", 7, "float32", {}), ("broadcast", 7, "float32", {}), "all_gather", "broadcast"),
    (("broadcast", 7, "float32", {"root": 1}), ("broadcast", 7, "float32", {"root": 2}), "from rank 1", "from rank 2"),
    (("reduce", 7, "float32", {"root": 1}), ("reduce", 7, "float32", {"root": 2}), "to rank 1", "to rank 2"),
    (("reduce", 7, "float32", {}), ("reduce_scatter", 7, "float32", {}), "reduce (sum)", "reduce_scatter (sum)"),
    (("barrier", 0, "uint8", {}), ("allreduce", 0, "float32", {}), "barrier", "allreduce"),
]


@pytest.mark.parametrize("case", MIXED)
@pytest.mark.parametrize("seed", range(3))
def test_calls_that_differ_are_named_on_both_sides(case: tuple[object, ...], seed: int) -> None:
    first, second, ours, theirs = case
    world = World(small(), seed)
    for rank, (kind, elements, dtype, options) in enumerate((first, second)):  # type: ignore[misc]
        world.call(rank, kind, np.zeros(elements, dtype), key=4, **options)
    world.run()  # rank 2 hasn't called yet: at once
    for rank in range(WORKERS):
        assert world.workers[rank].failure is not None
    words = str(world.finished[0][0].failure)
    assert "rank 0 calls" in words
    assert "rank 1 calls" in words
    for part in (ours, theirs):
        assert str(part) in words
    assert "key 4" in words


CONFIGS = [
    ("mode", SSP, "mode bsp", "mode ssp"),
    ("slice_elements", 4, "slice_elements 3", "slice_elements 4"),
    ("order", "arrival", "order rank", "order arrival"),
    ("on_worker_loss", "shrink", "on_worker_loss end", "on_worker_loss shrink"),
    ("learning_rate", 0.5, "learning_rate 0.01", "learning_rate 0.5"),
    ("tensor_bytes", (4, 8), "0 tensors", "2 tensors"),
]


@pytest.mark.parametrize(("field", "value", "ours", "theirs"), CONFIGS)
def test_configurations_that_differ_are_named_on_both_sides(field: str, value: object, ours: str, theirs: str) -> None:
    world = World(small(), configs={1: changed(small(), **{field: value})})
    world.run()
    for worker in world.workers:
        assert f"{ours}, rank 1 has {theirs}" in str(worker.failure)
        assert re.search(r"server [01] has", str(worker.failure))


def test_tensors_that_differ_are_named() -> None:
    config = small(tensor_bytes=(4, 8, 12))
    assert config.difference(changed(config, tensor_bytes=(4, 9, 12))) == (
        "tensor 1 of 8 bytes",
        "tensor 1 of 9 bytes",
    )
    assert config_from_bytes(config.to_bytes()) == config


def test_different_numbers_of_workers_or_servers_are_detected() -> None:
    worker = World(small()).workers[1]
    worker.receive(2, Head(PsMessageKind.HELLO).pack(), b"", 5)
    assert "rank 1: rank 2 takes it for a server" in str(worker.failure)
    assert "than 3 and 2" in str(worker.failure)


def test_gradients_of_another_size_than_the_weights_name_their_sender() -> None:
    world = World(small(mode=ASP))
    for rank in range(WORKERS):
        world.call(rank, "init", np.zeros(3, np.float32), key=0)
    world.run()
    world.call(2, "push_pull", np.ones(2, np.float32), target=np.ones(2, np.float32), key=0)
    world.run()
    assert "rank 2 calls push_pull key 0 with 2 float32, but with 2 float32 for 3 float32 of weights" in str(
        world.finished[2][-1].failure
    )


BAD_CALLS = [
    ("allreduce", np.zeros((2, 2), np.float32), {}, "1-D"),
    ("allreduce", np.zeros(8, np.float32)[::2], {}, "1-D"),
    ("allreduce", np.zeros(2, np.float16), {}, "1-D"),
    ("allreduce", np.frombuffer(bytes(8), np.float32), {}, "the result needs a writable array"),
    ("allreduce", np.zeros(2, np.uint8), {}, "uint8 can't be combined"),
    ("allreduce", np.zeros(2, np.int32), {"op": "avg"}, "of float32 and float64"),
    ("allreduce", np.zeros(2, np.int32), {"op": "mul"}, "op 'mul' is unknown; allowed: sum, avg, max"),
    ("gather", np.zeros(2, np.int32), {}, "call 'gather'"),
    ("broadcast", np.zeros(2, np.int32), {"root": 3}, "root 3: 0 to 2"),
    ("push_pull", np.zeros(2, np.float32), {}, "the key of a tensor"),
    ("push_pull", np.zeros(2, np.float32), {"key": 1, "target": np.zeros(3, np.float32)}, "target has 3"),
    ("init", np.zeros(0, np.float32), {"key": 1}, "without elements"),
    ("allreduce", np.zeros(2, np.float32), {"key": -1}, "key -1"),
]


@pytest.mark.parametrize(("kind", "array", "options", "words"), BAD_CALLS)
def test_impossible_calls_are_refused(kind: str, array: Array, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        World(small()).call(0, kind, array, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "fast"}, "mode 'fast' is unknown; allowed: bsp, backup"),
        ({"workers": 0}, "workers 0: 1 to"),
        ({"backups": 1}, "only mode backup has any"),
        ({"mode": BACKUP, "backups": 3}, "backups 3: 0 to 2"),
        ({"staleness": 1}, "only mode ssp bounds it"),
        ({"push_then_pull": True, "mode": "asp"}, "push_then_pull True: only mode bsp can wait"),
        ({"learning_rate": float("nan")}, "a finite number"),
        ({"heartbeat_s": 20.0}, "the first below the second"),
    ],
)
def test_impossible_configurations_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        small(**fields)


# ---- garbage


def test_garbage_never_stops_a_job_or_ends_only_its_sender(seed: int) -> None:
    """Random bytes, and true heads with random fields, from a worker that sends nothing else."""
    random = np.random.default_rng([11, seed])
    world = World(small(on_worker_loss="shrink"), seed)
    arrays = [np.full(7, 1 << rank, np.int64) for rank in range(WORKERS)]
    for rank in (0, 1):
        world.call(rank, "allreduce", arrays[rank], key=1)
    for _ in range(40):
        head = random.bytes(int(random.integers(0, 64)))
        if random.random() < 0.7:
            fields = [int(random.integers(0, 4)) for _ in range(12)]
            if random.random() < 0.3:
                fields[int(random.integers(0, 11))] = int(random.integers(0, 2**15))
            if random.random() < 0.5:
                fields[8] = EVERYBODY
            kind = PsMessageKind(int(random.choice([1, 2, 2, 2, 3, 4, 7])))
            spoiled = Head(kind, *fields[:7], PsOp(int(random.choice([0, 1, 4, 5, 6, 7]))), *fields[8:])
            head = spoiled._replace(key=100 + spoiled.key, dtype=int(random.integers(0, 5))).pack()
        to = WORKERS + int(random.integers(SERVERS))
        data = random.bytes(int(random.choice([0, 1, 4, 8, 12, 24])))
        world.wires.setdefault((2, to), deque()).append(OutgoingMessage(to, head, data, -1))
    world.run()
    world.kill(2)
    world.pass_time(1)
    for rank in (0, 1):
        assert [one.failure for one in world.finished[rank]] == [None]
        assert arrays[rank].tolist() == [3] * 7
    assert sum(s.counters["bad_heads"] + s.counters["ignored"] + s.counters["faults"] for s in world.servers) > 0


@pytest.mark.parametrize("seed", range(20))
def test_garbage_to_a_worker_is_counted(seed: int) -> None:
    random = np.random.default_rng([13, seed])
    world = World(small(), seed)
    arrays = sums(world)
    for _ in range(30):
        sender = int(random.choice([0, 3, 4]))  # a worker, or a server of calls there aren't
        key, number = int(random.integers(0, 2)) + 5 * (sender > 0), int(random.integers(0, 9))
        fake = Head(PsMessageKind.ANSWER, (1 << 63) + key, number, 4, 7, int(random.integers(0, 3)), 3, 3)
        world._deliver_raw(sender, 1, fake.pack() if random.random() < 0.6 else random.bytes(48), b"")
        world.step()
    world.run()
    assert [array.tolist() for array in arrays[1]] == [[7] * 7] * 3
    assert world.workers[1].counters["bad_heads"] + world.workers[1].counters["ignored"] >= 30


def test_an_answer_of_another_server_is_not_taken() -> None:
    world = World(small())
    arrays = sums(world)
    fake = Head(
        PsMessageKind.ANSWER,
        1 << 63,
        0,
        slices=4,
        elements=7,
        slice_elements=1,
        clock=3,
        dtype=3,
        source=EVERYBODY,
        sink=EVERYBODY,
        root=EVERYBODY,
    )
    assert world.workers[0].place(4, fake.pack(), 8) is None
    world._deliver_raw(4, 0, fake.pack(), bytes(8))
    world.run()
    assert [array.tolist() for array in arrays[0]] == [[7] * 7] * 3
    assert world.workers[0].counters["ignored"] == 1


RAW = [
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, dtype=3, source=EVERYBODY), 16, "but with 16 bytes of values"),
    (Head(PsMessageKind.PUSH, 5, 2, 2, 3, 3, dtype=3, source=EVERYBODY), 24, "but with slice 2 of 2"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, dtype=3, source=1), 24, "but with slice 0 of 1 from rank 1"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, op=PsOp.COPY, source=EVERYBODY), 12, "from rank 65535"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, op=PsOp.COPY, source=3), 0, "from rank 3"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 0, 0, op=PsOp.KEEP, source=1), 0, "but with no values"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, dtype=2, op=PsOp.KEEP, source=1), 12, "but with int32 values"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, dtype=4, source=EVERYBODY), 3, "but with uint8 values"),
    (Head(PsMessageKind.PUSH, 5, 0, 1, 3, 3, op=PsOp.PULL, source=EVERYBODY), 0, "no weights before, by init"),
]


@pytest.mark.parametrize(("head", "size_bytes", "words"), RAW)
def test_pushes_that_contradict_themselves_name_their_sender(head: Head, size_bytes: int, words: str) -> None:
    world = World(small())
    world.run()
    world._deliver_raw(1, 3, head.pack(), bytes(size_bytes))
    assert str(world.servers[0].failure).startswith("rank 1 calls")
    assert words in str(world.servers[0].failure)


def test_memory_of_an_incomplete_message_is_freed() -> None:
    world = World(small(on_worker_loss="shrink"))
    world.run()
    head = RAW[0][0].pack()
    assert world.servers[0].place(1, head, 16) is None  # not of the size it says
    assert world.servers[0].place(1, head, 24) is not None
    assert world.servers[0].place(1, head, 24) is None  # once
    assert not world.memory_is_free()
    world.kill(1)
    assert world.memory_is_free()
