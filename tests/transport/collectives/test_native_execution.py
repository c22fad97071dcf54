"""Plans in C: the same bits as NumPy's, on a mesh in C without Python, whatever the pieces in which bytes arrive."""

import gc
import random
import socket
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from collective_net import Net

from switchagg.calls.call_request import CallRequest
from switchagg.description import shard_range
from switchagg.native.library import missing
from tests.oracles.compiled_plan import compile_plan
from tests.oracles.execution import Execution
from tests.transport.meshes.test_tcp_mesh import a_mesh_and_a_bare_peer, frame
from transport.collectives import collective_party
from transport.collectives.collective import Task
from transport.collectives.collective_party import CollectiveParty
from transport.collectives.collective_table import COLLECTIVES, plan
from transport.collectives.execution import NativeExecution
from transport.collectives.programs import SEGMENT_BYTES, CompiledProgram
from transport.meshes.mesh import MemberLost, MessageReceived, MessageSent

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

KINDS_OF_CALLS = [(kind, name) for name, one in COLLECTIVES.items() for kind in one.kinds]
TYPES = [("sum", np.float32), ("sum", np.float64), ("sum", np.int32), ("sum", np.int64)]
TYPES += [("max", np.int32), ("max", np.int64)]
NUMPYS = [("sum", np.float16), ("max", np.float32), ("sum", np.uint8), ("sum", np.dtype(">i4"))]
"""What NumPy combines, called by C."""


def any_values(chance: np.random.Generator, dtype: Any, elements: int) -> Any:
    """Of floats: infinities, numbers that are denormal, and so large that sums overflow, among them."""
    if np.dtype(dtype).kind in "iu":
        return chance.integers(
            np.iinfo(dtype).min, np.iinfo(dtype).max, elements, np.dtype(dtype).newbyteorder("="), True
        ).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        exponents = chance.integers(np.finfo(dtype).minexp - 20, np.finfo(dtype).maxexp + 1, elements)
        return np.ldexp(chance.standard_normal(elements).astype(dtype), exponents)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_random_plans_give_the_same_bits_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    workers, elements, segment_bytes = chance.randrange(2, 7), chance.randrange(0, 200), chance.randrange(1, 300)
    kind, algorithm = chance.choice(
        [each for each in KINDS_OF_CALLS if COLLECTIVES[each[1]].kinds[each[0]].fits(workers)]
    )
    op, dtype = chance.choice(TYPES + NUMPYS)
    given = [any_values(numbers, dtype, elements) for _ in range(workers)]
    found = []
    for kind_of_execution in (NativeExecution, Execution):
        monkeypatch.setattr(collective_party, "NativeExecution", kind_of_execution)
        net = Net(workers, chance.randrange(100), segment_bytes=segment_bytes)
        arrays = [array.copy() for array in given]
        for rank in range(workers):
            call = net.parties[rank].submit(CallRequest(kind, op), algorithm, arrays[rank], now_ns=0)
            assert type(call.execution) is kind_of_execution
        net.run()
        assert net.failures() == [""] * workers
        found.append([array.tobytes() for array in arrays])
    assert found[0] == found[1]


def test_plans_compile_to_the_same_programs_in_c() -> None:
    for seed in range(150):
        chance = random.Random(seed)
        workers, elements = chance.randrange(1, 10), chance.choice([0, 3, chance.randrange(2000)])
        kinds = [(kind, name) for kind, name in KINDS_OF_CALLS if COLLECTIVES[name].kinds[kind].fits(workers)]
        kind, algorithm = chance.choice(kinds)
        itemsize, segment_bytes = chance.choice([1, 4, 8]), chance.choice([1, chance.randrange(1, 300), 65_000])
        one = plan(Task(kind, algorithm, chance.randrange(workers), workers, elements))
        compiled, expected = CompiledProgram(one, itemsize, segment_bytes), compile_plan(one, itemsize, segment_bytes)
        assert compiled.lists == expected, seed
        assert list(compiled.lists.arrivals) == sorted(expected.arrivals), seed
        facts = compiled.native
        assert (facts.nodes, facts.arriving) == (len(expected.kinds), len(expected.arrivals))
        assert (facts.members, facts.itemsize, facts.elements) == (workers, itemsize, elements)


@pytest.mark.parametrize("elements", [7, 30, 31, 1000])
def test_plans_that_turn_are_those_of_member_0_with_its_number_added(elements: int) -> None:
    workers, turns = 7, [(kind, name) for kind, name in KINDS_OF_CALLS if COLLECTIVES[name].kinds[kind].turns]
    assert len(turns) == 3
    ends = [shard_range(elements, piece, workers) for piece in range(workers)]
    for kind, name in turns:
        first = plan(Task(kind, name, 0, workers, elements)).operations
        for member in range(1, workers):
            operations = plan(Task(kind, name, member, workers, elements)).operations
            assert operations == tuple(
                type(each)(
                    each[0], (each[1] + member) % workers, *ends[(ends.index(each[2:4]) + member) % workers], *each[4:]
                )
                for each in first
            )


def test_what_numpy_can_not_combine_either_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="add"):
        CollectiveParty(0, 2).submit(CallRequest("allreduce"), "ring", np.zeros(4, "V4"), now_ns=0)


class Pair:
    """Rank 0, a party on a mesh over TCP, and rank 1, a party in Python at the other end of the socket."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.mesh, self.peer = a_mesh_and_a_bare_peer()
        self.peer.setblocking(False)
        self.mine = CollectiveParty(0, 2, **options)
        self.mine.runner = self.mesh
        self.theirs = CollectiveParty(1, 2, **options)
        self.out, self.into = bytearray(), bytearray()
        self.events: list[Any] = []

    def pump(self) -> None:
        """What the loop of rank 0 does once."""
        self.mesh.carry(self.mine.messages_to_send())
        for event in self.mesh.receive(self.mine.place):
            self.events.append(event)
            if isinstance(event, MessageReceived):
                self.mine.receive(event.sender, event.head, event.data, 0)
            elif isinstance(event, MessageSent):
                self.mine.on_sent(event.ticket)
            else:
                self.mine.lost(event.member, event.reason, 0)

    def step(self, size: int) -> None:
        """Up to so many bytes of each direction."""
        for message in self.theirs.messages_to_send():
            self.out += frame(message.head, bytes(message.data))
            self.theirs.on_sent(message.ticket)
        del self.out[: self.peer.send(self.out[:size]) if self.out else 0]
        self.pump()
        try:
            self.into += self.peer.recv(size)
        except BlockingIOError:
            return
        while len(self.into) >= 8 and len(self.into) >= (
            end := 8 + self.into[1] + int.from_bytes(self.into[4:8], "big")
        ):
            head, data = bytes(self.into[8 : 8 + self.into[1]]), bytes(self.into[8 + self.into[1] : end])
            del self.into[:end]
            self.theirs.receive(0, head, data, 0)

    def run(self, calls: int, size_max: int = 100_000) -> list[Any]:
        """Until so many calls have ended on both; their failures."""
        ends: tuple[list[Any], list[Any]] = ([], [])
        for _ in range(10**6):
            self.step(self.chance.randrange(1, size_max))
            ends[0].extend(self.mine.events())
            ends[1].extend(self.theirs.events())
            if min(map(len, ends)) == calls:
                return [end.failure for each in ends for end in each if end.failure]
        raise AssertionError("the calls don't end")

    def close(self) -> None:
        self.peer.close()
        self.mesh.close(0.0)


@pytest.fixture
def pairs() -> Iterator[Any]:
    made: list[Pair] = []

    def one(seed: int = 0, **options: Any) -> Pair:
        made.append(Pair(seed, **options))
        return made[-1]

    yield one
    for each in made:
        each.close()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("seed", range(12))
def test_calls_over_a_mesh_in_c_are_right_in_pieces_of_any_size(pairs: Any, seed: int) -> None:
    """Also those that C leaves to NumPy, beside the others; begun in another order on each rank, some late."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    pair = pairs(seed, segment_bytes=chance.choice((8, 64, 1000, 40_000, SEGMENT_BYTES)))
    pair.mesh.set_credit(chance.choice((None, 1, 100_000)))
    elements = 3000 if pair.mine._segment_bytes > 64 else 40
    calls = []
    for key in range(8):
        op, dtype = chance.choice(TYPES + NUMPYS)
        given = [any_values(numbers, dtype, chance.choice((0, 1, elements)) if key else elements) for _ in range(2)]
        given[1] = np.resize(given[1], len(given[0])).astype(dtype)
        algorithm = chance.choice(("ring", "halving_doubling", "tree", "direct"))
        expected = (np.add(*given) if op == "sum" else np.maximum(*given)).astype(dtype)
        calls.append((key, algorithm, op, [array.copy() for array in given], expected))
    for party, order in ((pair.mine, chance.sample(calls, 8)), (pair.theirs, chance.sample(calls, 8))):
        for key, algorithm, op, arrays, _ in order:
            party.submit(
                CallRequest("allreduce", op, key=key, priority=key % 3), algorithm, arrays[party.member], now_ns=0
            )
            if chance.random() < 0.5:
                pair.step(chance.randrange(1, 5000))
    ended = [len(party.events()) for party in (pair.mine, pair.theirs)]
    assert max(ended) <= 8
    while min(ended) < 8:
        pair.step(chance.randrange(1, chance.choice((10, 1000, 200_000))))
        for place, party in enumerate((pair.mine, pair.theirs)):
            found = party.events()
            assert not any(end.failure for end in found), found
            ended[place] += len(found)
    for _, _, _, arrays, expected in calls:
        assert [array.tobytes() for array in arrays] == [expected.tobytes()] * 2


def test_messages_of_a_running_call_reach_no_python(pairs: Any) -> None:
    pair = pairs()
    arrays = [np.full(100_000, rank + 1) for rank in range(2)]
    pair.mine.submit(CallRequest("allreduce"), "ring", arrays[0], now_ns=0)
    pair.theirs.submit(CallRequest("allreduce"), "ring", arrays[1], now_ns=0)
    assert pair.run(1) == []
    assert set(arrays[0]) == set(arrays[1]) == {3}
    assert [type(event) for event in pair.events] == [MessageSent]  # of the call
    counters = pair.mesh.counters
    assert counters["tx_bytes"] == counters["rx_bytes"] == arrays[0].nbytes
    assert counters["rx_messages"] == counters["tx_messages"] == 14


@pytest.mark.parametrize(
    ("step", "segment", "size", "words"),
    [(0, 0, 9, "has 9 bytes, not 400"), (9, 0, 400, "is not expected"), (0, 0, 400, "came twice")],
)
def test_a_wrong_message_of_a_running_call_fails_it_by_name(
    pairs: Any, step: int, segment: int, size: int, words: str
) -> None:
    pair = pairs()
    pair.mine.submit(CallRequest("allreduce"), "ring", np.zeros(100), now_ns=0)
    pair.theirs.submit(CallRequest("allreduce"), "ring", np.zeros(100), now_ns=0)
    (right,) = pair.theirs.messages_to_send()
    head = right.head[:40] + step.to_bytes(4, "big") + segment.to_bytes(4, "big")
    pair.out += frame(right.head, bytes(right.data)) * (words == "came twice") + frame(head, bytes(size))
    while pair.mine.failure is None:
        pair.step(1000)
    assert str(pair.mine.failure) == (
        "job collective: rank 1 sends rank 0 a wrong message of ring allreduce 0 of 100 float64 (sum): "
        f"step {step}, segment {segment} {words}; missing ranks: 1"
    )


def test_a_peer_that_dies_within_a_message_is_lost_and_the_array_is_left_alone(pairs: Any) -> None:
    pair = pairs()
    array = np.zeros(1000)
    pair.mine.submit(CallRequest("broadcast", root=1), "tree", array, now_ns=0)
    pair.theirs.submit(CallRequest("broadcast", root=1), "tree", np.ones(1000), now_ns=0)
    (message,) = pair.theirs.messages_to_send()
    pair.out += frame(message.head, bytes(message.data))[:4000]
    while not array[:400].all():  # it is received in place
        pair.step(10_000)
    pair.peer.shutdown(socket.SHUT_WR)
    while pair.mine.failure is None:
        pair.pump()
    assert "rank 0 lost rank 1 in tree broadcast 0" in str(pair.mine.failure)
    assert isinstance(pair.events[-1], MemberLost)


def test_after_a_failure_nothing_more_is_received_into_an_array(pairs: Any) -> None:
    pair = pairs()
    array = np.zeros(1000)
    pair.mine.submit(CallRequest("broadcast", root=1), "tree", array, now_ns=0)
    pair.theirs.submit(CallRequest("broadcast", root=1), "tree", np.ones(1000), now_ns=0)
    (message,) = pair.theirs.messages_to_send()
    whole = frame(message.head, bytes(message.data))
    pair.out += whole[:4000]
    while not array[:400].all():
        pair.step(10_000)
    pair.mine.fail("enough", ())
    array[:] = 7
    pair.out += whole[4000:] + frame(b"next", b"")
    while not any(isinstance(event, MessageReceived) for event in pair.events):
        pair.step(10_000)
    assert set(array) == {7}
    assert [event.head for event in pair.events if isinstance(event, MessageReceived)] == [b"next"]


def test_a_message_of_a_call_that_is_over_is_kept_for_the_next_of_its_key(pairs: Any) -> None:
    pair = pairs()
    for value in (1, 2):
        arrays = [np.zeros(10), np.full(10, float(value))]
        if value == 2:
            pair.theirs.submit(CallRequest("broadcast", key=1, root=1), "tree", arrays[1], now_ns=0)
            while not isinstance(pair.events[-1], MessageReceived):
                pair.step(10_000)
            pair.mine.submit(CallRequest("broadcast", key=1, root=1), "tree", arrays[0], now_ns=0)
            assert len(pair.mine.events()) == 1
        else:
            for party in (pair.mine, pair.theirs):
                party.submit(CallRequest("broadcast", key=1, root=1), "tree", arrays[party.member], now_ns=0)
            assert pair.run(1) == []
        assert set(arrays[0]) == {value}


def test_arrays_are_let_go_when_their_call_is_done_and_when_the_mesh_closes(pairs: Any) -> None:
    pair = pairs()
    arrays = [np.zeros(1000), np.zeros(1000)]
    for party in (pair.mine, pair.theirs):
        party.submit(CallRequest("allreduce"), "ring", arrays[party.member], now_ns=0)
    pair.run(1)
    stuck = np.zeros(1000)
    pair.mine.submit(CallRequest("allreduce"), "ring", stuck, now_ns=0)
    pair.pump()
    gone = [weakref.ref(arrays[0]), weakref.ref(stuck)]
    del arrays, stuck
    gc.collect()
    assert [each() is None for each in gone] == [True, False]
    pair.mine.fail("enough", ())
    pair.mine.events()
    pair.mesh.close(0.0)
    gc.collect()
    assert gone[1]() is None
