"""What an endpoint does with a wrong sum, step by step, in both cores (V6 to V9)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.calls.chunked_call import ArrayCall
from switchagg.codecs.codec import Array
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature
from switchagg.endpoint import CallCompleted, WrongSum
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.partial_endpoint import endpoint_of
from switchagg.wire import FLAG_RETRANSMISSION, HEADER_BYTES, MAX_BIT, Bundle, headers, payload

MS = 1_000_000
CORES: list[Callable[..., Any]] = [endpoint_of] if missing() else [endpoint_of, NativeEndpoint]
pytestmark = pytest.mark.parametrize("core", CORES)


class Bench:
    """Two ranks at a switch; a test moves each packet."""

    def __init__(self, core: Callable[..., Any], elements: int = 24, workers: int = 2, **terms: Any) -> None:
        self.job = JobConfig(1, 7, workers, elements, (StreamConfig(0, 16),), verify="on", **terms)
        self.plane = ReferencePlane(16, elements)
        self.plane.admit(self.job, range(workers))
        self.ends = [core(self.job, rank, key=bytes(range(16))) for rank in range(workers)]
        self.now_ns = 0
        self.events: list[list[Any]] = [[] for _ in range(workers)]

    def submit(self, rank: int, array: Array, words: tuple[int, ...] | None = None, op: str = "sum") -> ArrayCall:
        call = array_call(array, op, self.job)
        call.description = words
        self.ends[rank].submit(0, call)
        return call

    def frames(self, rank: int) -> list[Bundle]:
        """What a rank sends now."""
        frames: list[Bundle] = []
        while len(bundle := self.ends[rank].frames_to_send(self.now_ns)):
            frames += [row[np.newaxis].copy() for row in bundle]
        return frames

    def results(self, rank: int, frames: list[Bundle]) -> list[tuple[int, Bundle]]:
        """What the switch makes of packets: (rank, result)."""
        outputs = [output for frame in frames for output in self.plane.process(frame.copy(), rank)]
        return [(port, output.bundle.copy()) for output in outputs for port in output.ports]

    def receive(self, rank: int, frame: Bundle) -> None:
        self.now_ns += MS
        self.ends[rank].receive(frame, self.now_ns)
        while (event := self.ends[rank].next_event()) is not None:
            self.events[rank].append(event)

    def step(self, change: Callable[[int, Bundle], None] = lambda rank, frame: None) -> None:
        """All that is on its way; `change` may write into results."""
        outputs = [pair for rank in range(self.job.workers) for pair in self.results(rank, self.frames(rank))]
        for rank, frame in outputs:
            change(rank, frame)
            self.receive(rank, frame)

    def counted(self, rank: int, name: str) -> int:
        count: int = self.ends[rank].counters.get(name, 0)
        return count


def is_data(frame: Bundle) -> bool:
    return not headers(frame).tolist()[0][0] & MAX_BIT


def test_v7_damage_on_a_wire_is_repaired_by_a_second_copy(core: Callable[..., Any]) -> None:
    bench = Bench(core)
    arrays = [np.arange(15, dtype=np.int32), np.full(15, -(2**31), np.int32)]
    expected, given = arrays[0] + arrays[1], arrays[0].copy()
    for rank, array in enumerate(arrays):
        bench.submit(rank, array)
    results = [pair for rank in (0, 1) for pair in bench.results(rank, bench.frames(rank))]
    for rank, frame in results:
        if rank == 0:
            payload(frame)[0, 3] ^= 1 << 7
        bench.receive(rank, frame)
    assert (arrays[0] == given).all()  # nothing of a wrong sum is taken
    assert bench.counted(0, "wrong_sums") == 1
    assert not bench.events[0]
    copies = bench.frames(0)
    assert [headers(frame).tolist()[0][0] & FLAG_RETRANSMISSION for frame in copies] == [FLAG_RETRANSMISSION]
    assert bench.frames(0) == []  # once
    for rank, frame in bench.results(0, copies):
        bench.receive(rank, frame)
    assert [type(event) for event in bench.events[0]] == [CallCompleted]
    assert (arrays[0] == expected).all()
    assert (arrays[1] == expected).all()
    assert (bench.counted(0, "wrong_sums"), bench.counted(0, "results")) == (1, 1)


def test_v7_a_wrong_sum_before_the_copy_was_asked_for_is_no_second_one(core: Callable[..., Any]) -> None:
    bench = Bench(core)
    for rank in range(2):
        bench.submit(rank, np.ones(15, np.int32))
    (_, right), _ = [pair for rank in (0, 1) for pair in bench.results(rank, bench.frames(rank))]
    wrong = right.copy()
    payload(wrong)[0, -1] ^= 1
    for _ in range(3):
        bench.receive(0, wrong.copy())
    assert not bench.events[0]
    assert len(bench.frames(0)) == 1
    bench.receive(0, wrong.copy())
    assert [type(event) for event in bench.events[0]] == [WrongSum]
    assert bench.counted(0, "wrong_sums") == 4
    event = bench.events[0][0]
    assert (event.stream, event.chunk, event.slot, event.version, event.timeouts) == (0, 0, 0, 0, 0)
    assert event.reason == "wrong sum, also when it was asked for again"
    assert bench.frames(0) == []  # the stream sends nothing more
    assert bench.counted(0, "results") == 0


@pytest.mark.parametrize("differs", [False, True])
def test_v7_who_makes_other_calls_is_named_before_sums_are_blamed(core: Callable[..., Any], differs: bool) -> None:
    """A wrong sum waits for descriptions; with equal ones it is the error."""
    bench = Bench(core)
    words = [CallSignature("allreduce", "sum", np.dtype(np.int32), 15 + rank * differs).words(0) for rank in range(2)]
    arrays = [np.ones(15, np.int32), np.ones(15 + differs, np.int32)]
    for rank, array in enumerate(arrays):
        bench.submit(rank, array, words[rank])
    first = [pair for rank in (0, 1) for pair in bench.results(rank, bench.frames(rank)) if pair[0] == 0]
    description = next(frame for _, frame in first if not is_data(frame))
    sums = next(frame for _, frame in first if is_data(frame))
    payload(sums)[0, 0] ^= 1
    bench.receive(0, sums.copy())
    bench.frames(0)
    bench.receive(0, sums.copy())
    assert not bench.events[0]
    bench.receive(0, description)
    (event,) = bench.events[0]
    if differs:
        assert not isinstance(event, WrongSum)
        assert event.rank == 1
        assert "rank 1 calls allreduce 0 of 16 int32 (sum), rank 0 calls" in event.reason
    else:
        assert isinstance(event, WrongSum)


def test_v6_a_maximum_below_what_a_rank_gave_is_wrong(core: Callable[..., Any]) -> None:
    bench = Bench(core)
    arrays = [np.array([5, -7, 3], np.int32), np.array([4, 9, 3], np.int32)]
    for rank, array in enumerate(arrays):
        bench.submit(rank, array, op="max")

    def lower(rank: int, frame: Bundle) -> None:
        payload(frame)[0, 1] = 8

    bench.step(lower)
    assert [bench.counted(rank, "wrong_sums") for rank in (0, 1)] == [0, 1]
    assert [type(event) for event in bench.events[0]] == [CallCompleted]
    bench.step(lower)
    assert [type(event) for event in bench.events[1]] == [WrongSum]
    assert arrays[1].tolist() == [4, 9, 3]


def head_and_data(bench: Bench) -> tuple[Bundle, Bundle]:
    """What rank 0 gets of a small call."""
    results = [pair for rank in (0, 1) for pair in bench.results(rank, bench.frames(rank)) if pair[0] == 0]
    head, data = (next(frame for _, frame in results if is_data(frame) is kind) for kind in (False, True))
    return head, data


def test_v8_a_result_before_its_head_is_verified_with_it(core: Callable[..., Any]) -> None:
    """It is kept; if the head says that it counts and it is wrong, it is too late to ask again."""
    for damaged in (False, True):
        bench = Bench(core, elements=64)
        arrays = [np.full(9, 1.5 + rank, np.float32) for rank in range(2)]
        call, _ = [bench.submit(rank, array) for rank, array in enumerate(arrays)]
        head, data = head_and_data(bench)
        payload(data)[0, 2] ^= int(damaged)
        bench.receive(0, data)
        assert bench.counted(0, "wrong_sums") == 0
        assert bench.ends[0].held(call).tolist() == [False]
        bench.receive(0, head)
        assert bench.counted(0, "predicted") == 1
        assert bench.counted(0, "wrong_sums") == damaged
        if damaged:
            assert [type(event) for event in bench.events[0]] == [WrongSum]
            assert "too early to be asked for again" in bench.events[0][0].reason
            assert bench.ends[0].held(call).tolist() == [False]
            assert (arrays[0] == 1.5).all()
        else:
            assert (arrays[0] == 4.0).all()


def test_v8_rows_of_zeros_count_only_where_all_predicted_that(core: Callable[..., Any]) -> None:
    """After ones, zeros are predicted as ones on all ranks: without tags that would be as good."""
    bench = Bench(core, elements=64)
    for values, counters in ((1.0, (1, 0)), (0.0, (1, 1)), (1.0, (2, 1))):
        arrays = [np.full(9, values, np.float32) for _ in range(2)]
        for rank, array in enumerate(arrays):
            bench.submit(rank, array)
        bench.step()
        bench.step()
        assert (arrays[0] == 2 * values).all()
        assert (bench.counted(0, "predicted"), bench.counted(0, "repeated")) == counters


def test_v9_a_worker_abstains_only_from_sums_that_are_right(core: Callable[..., Any]) -> None:
    """Rank 1 is late: a sum without it. It says that it has the sum once the sum is right."""
    bench = Bench(core, workers=2, backups=1)
    arrays = [np.full(9, 1 + rank, np.int32) for rank in range(2)]
    for rank, array in enumerate(arrays):
        bench.submit(rank, array)
    late = bench.frames(1)
    results = bench.results(0, bench.frames(0))
    right = next(frame for rank, frame in results if rank == 1)
    wrong = right.copy()
    payload(wrong)[0, 0] ^= 1
    bench.receive(1, wrong)
    copies = bench.frames(1)
    assert [frame.shape[1] > HEADER_BYTES for frame in copies] == [True]  # no abstention
    assert bench.counted(1, "abstained") == 0
    bench.results(1, late)
    bench.receive(1, right)
    assert [frame.shape[1] for frame in bench.frames(1)] == [HEADER_BYTES]
    assert bench.counted(1, "abstained") == 1
    assert (arrays[1] == 1).all()
    assert [type(event) for event in bench.events[1]] == [CallCompleted]


@pytest.mark.parametrize("damaged", [False, True])
def test_v9_a_result_before_its_call_is_verified_when_it_is_taken(core: Callable[..., Any], damaged: bool) -> None:
    bench = Bench(core, workers=2, backups=1)
    arrays = [np.full(9, 1 + rank, np.int32) for rank in range(2)]
    bench.submit(0, arrays[0])
    early = next(frame for rank, frame in bench.results(0, bench.frames(0)) if rank == 1)
    payload(early)[0, 4] ^= int(damaged)
    bench.receive(1, early)
    assert bench.counted(1, "early") == 1
    bench.submit(1, arrays[1])
    while (event := bench.ends[1].next_event()) is not None:
        bench.events[1].append(event)
    assert [type(event) for event in bench.events[1]] == [WrongSum if damaged else CallCompleted]
    assert (arrays[1] == (2 if damaged else 1)).all()
    assert bench.counted(1, "wrong_sums") == damaged


def test_v9_a_presence_of_ranks_there_are_not_is_wrong(core: Callable[..., Any]) -> None:
    bench = Bench(core, workers=2, backups=1)
    for rank in range(2):
        bench.submit(rank, np.ones(9, np.int32))

    def name_rank_2(rank: int, frame: Bundle) -> None:
        payload(frame)[0, bench.job.room - 1] = 4

    bench.step(name_rank_2)
    assert [bench.counted(rank, "wrong_sums") for rank in range(2)] == [1, 1]


def test_v4_what_is_sent_again_is_what_was_sent(core: Callable[..., Any]) -> None:
    """So no two payloads have the same pads. Tags of ranks, chunks and keys differ, of equal values."""
    bench = Bench(core)
    for rank in range(2):
        bench.submit(rank, np.zeros(60, np.int32))
    first, others = bench.frames(0), bench.frames(1)
    bench.now_ns += 10**12
    bench.ends[0].handle_timer(bench.now_ns)
    again = bench.frames(0)
    assert again
    for frame in again:
        assert any((payload(frame) == payload(other)).all() for other in first)
    tags = {payload(frame)[0, -3:].tobytes() for frame in (*first, *others)}
    assert len(tags) == len(first) + len(others) == 8


def test_an_endpoint_without_tags_is_as_before(core: Callable[..., Any]) -> None:
    job = JobConfig(1, 7, 2, 24, (StreamConfig(0, 16),), verify="off")
    plain, verified = core(job, 0), core(JobConfig(1, 7, 2, 24, (StreamConfig(0, 16),), verify="on"), 0)
    for end in (plain, verified):
        end.submit(0, array_call(np.arange(24, dtype=np.int32), "sum", end.job))
    assert (payload(plain.frames_to_send(0))[0] == np.arange(24)).all()
    assert (payload(verified.frames_to_send(0))[0, -3:] != 0).any()
