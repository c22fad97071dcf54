"""endpoint, in Python and in C: W2, W5 to W9, W12, on virtual time, against the reference switch if one is needed."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature
from switchagg.endpoint import CallCompleted, Endpoint, StreamFailed
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.window import OVERTAKEN, PROBES
from switchagg.wire import FLAG_RETRANSMISSION, Bundle, decode, encode, frame_bytes

MS = 1_000_000

ENDPOINTS: dict[str, type[Endpoint] | type[NativeEndpoint]] = {"python": Endpoint, "native": NativeEndpoint}
native = pytest.param(
    "native", marks=pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")
)
pytestmark = pytest.mark.parametrize("core", ["python", native])


def config(workers: int = 1, window: int = 4, streams: int = 1, **changes: Any) -> JobConfig:
    ranges = tuple(StreamConfig(i * window, window) for i in range(streams))
    return JobConfig(3, 7, workers, 2, ranges, **changes)


class Bench:
    """Endpoints of one job and a switch, joined by hand: nothing moves unless a test moves it."""

    def __init__(self, job: JobConfig, core: str) -> None:
        self.job = job
        self.switch = ReferencePlane(64, job.elements)
        self.switch.admit(job, range(job.workers))
        self.endpoints = [ENDPOINTS[core](job, rank) for rank in range(job.workers)]

    def submit(self, values: list[int], stream: int = 0) -> list[NDArray[np.int32]]:
        """One int32 call of the same values on every rank."""
        arrays = [np.array(values, np.int32) for _ in self.endpoints]
        for endpoint, array in zip(self.endpoints, arrays, strict=True):
            endpoint.submit(stream, array_call(array, "sum", self.job))
        return arrays

    def describe(self, *sizes: int) -> None:
        """One described call of ones, of so many values on each rank."""
        for endpoint, size in zip(self.endpoints, sizes, strict=True):
            call = array_call(np.ones(size, np.int32), "sum", self.job)
            call.description = CallSignature("allreduce", "sum", np.dtype(np.int32), size).words(7)
            endpoint.submit(0, call)

    def through_switch(self, frames: Bundle, rank: int = 0) -> dict[int, list[bytes]]:
        """What the switch sends for these frames, per rank."""
        sent: dict[int, list[bytes]] = {r: [] for r in range(self.job.workers)}
        for output in self.switch.process(frames, rank):
            for port in output.ports:
                sent[port] += [row.tobytes() for row in output.bundle]
        return sent


def bundle(*frames: bytes) -> Bundle:
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), -1)


def chunks(frames: Bundle) -> list[int]:
    return [decode(row.tobytes()).chunk for row in frames]


def test_the_window_bounds_chunks_and_each_has_its_slot(core: str) -> None:
    """W2, W6: a window of chunks goes out; each result releases the chunk one window later, and no other."""
    bench = Bench(config(window=3), core)
    bench.submit(list(range(20)))
    endpoint = bench.endpoints[0]
    frames = endpoint.frames_to_send(0)
    assert chunks(frames) == [0, 1, 2]
    assert len(endpoint.frames_to_send(0)) == 0
    answers = bench.through_switch(frames)[0]
    endpoint.receive(bundle(answers[1]), MS)
    frames = endpoint.frames_to_send(MS)
    packet = decode(frames[0].tobytes())
    assert chunks(frames) == [4]
    assert (packet.slot, packet.version) == bench.job.place(0, 4) == (1, 1)
    endpoint.receive(bundle(*answers), MS)  # 0 and 2; 1 is a duplicate by now
    assert chunks(endpoint.frames_to_send(MS)) == [3, 5]
    assert endpoint.counters["duplicates"] == 1


def test_limit_bounds_a_bundle(core: str) -> None:
    bench = Bench(config(window=8), core)
    bench.submit(list(range(16)))
    assert [len(bench.endpoints[0].frames_to_send(0, limit=3)) for _ in range(4)] == [3, 3, 2, 0]


def test_calls_complete_in_place(core: str) -> None:
    bench = Bench(config(workers=2, window=2), core)
    first, second = bench.submit([1, 2, 3]), bench.submit([-5])
    queues: list[deque[bytes]] = [deque(), deque()]
    done = [0, 0]
    for turn in range(20):
        for rank, endpoint in enumerate(bench.endpoints):
            while queues[rank]:
                endpoint.receive(bundle(queues[rank].popleft()), turn * MS)
            for to, answers in bench.through_switch(endpoint.frames_to_send(turn * MS), rank).items():
                queues[to].extend(answers)
            while isinstance(event := endpoint.next_event(), CallCompleted):
                done[rank] += 1
                assert event.stream == 0
    assert done == [2, 2]
    assert [a.tolist() for a in first] == [[2, 4, 6]] * 2
    assert [a.tolist() for a in second] == [[-10]] * 2
    assert all(e.next_deadline_ns() is None for e in bench.endpoints)


@pytest.mark.parametrize("sizes", [(5, 4), (4, 5), (1, 0)])
def test_calls_that_differ_fail_on_every_rank_and_none_after_them_completes(core: str, sizes: tuple[int, int]) -> None:
    """W12: also on the rank that has fewer chunks, and whose results are all there before the description's."""
    bench = Bench(config(workers=2, window=16), core)
    bench.describe(3, 3)
    bench.describe(*sizes)
    bench.describe(1, 1)
    results: list[list[bytes]] = [[], []]
    for rank, endpoint in enumerate(bench.endpoints):
        for to, answers in bench.through_switch(endpoint.frames_to_send(0), rank).items():
            results[to] += answers
    first = 4 + 2  # chunks of the first call: of its description, eight words, and of its values
    theirs = [f"rank {rank} calls allreduce 7 of {size} int32 (sum)" for rank, size in enumerate(sizes)]
    for rank, endpoint in enumerate(bench.endpoints):
        late = [frame for frame in results[rank] if first <= decode(frame).chunk < first + 4]
        endpoint.receive(bundle(*(frame for frame in results[rank] if frame not in late)), MS)
        assert isinstance(endpoint.next_event(), CallCompleted)
        assert endpoint.next_event() is None
        endpoint.receive(bundle(*late), MS)
        failed = endpoint.next_event()
        assert isinstance(failed, StreamFailed)
        assert (failed.rank, failed.chunk, failed.reason) == (
            1 - rank,
            first,
            ", ".join([theirs[1 - rank], theirs[rank]]),
        )
        assert endpoint.next_event() is None
        assert endpoint.next_deadline_ns() is None


def test_a_described_call_without_values_waits_for_all_ranks(core: str) -> None:
    bench = Bench(config(workers=2), core)
    bench.describe(0, 0)
    answers: list[bytes] = []
    for rank, endpoint in enumerate(bench.endpoints):
        assert endpoint.next_event() is None
        answers += bench.through_switch(endpoint.frames_to_send(0), rank)[0]
    bench.endpoints[0].receive(bundle(*answers), MS)
    assert isinstance(bench.endpoints[0].next_event(), CallCompleted)


def test_an_empty_call_completes_at_once(core: str) -> None:
    bench = Bench(config(), core)
    bench.submit([])
    assert isinstance(bench.endpoints[0].next_event(), CallCompleted)
    assert bench.endpoints[0].next_event() is None


def test_packets_that_are_no_awaited_result_change_nothing(core: str) -> None:
    """W5: every kind of datagram but the awaited one is counted; the awaited one still completes the call."""
    bench = Bench(config(window=2), core)
    [array] = bench.submit([4, 5])
    endpoint = bench.endpoints[0]
    [answer] = bench.through_switch(endpoint.frames_to_send(0))[0]
    fields = decode(answer)
    from dataclasses import replace

    unknown_senders = {
        "drop_short": answer[:19],
        "drop_magic": b"\0" + answer[1:],
        "drop_length": answer[:-1],
        "drop_op": answer[:2] + b"\x26" + answer[3:],
        "drop_flags": answer[:3] + b"\x81" + answer[4:],
        "drop_wire_version": answer[:2] + b"\x10" + answer[3:],
        "drop_job": encode(replace(fields, job=4)),
        "drop_generation": encode(replace(fields, generation=6)),
        "drop_foreign": encode(replace(fields, result=False)),
    }
    for reason, data in unknown_senders.items():
        endpoint.receive(bundle(data), MS)
        assert endpoint.counters[reason] == 1
    for other in (
        replace(fields, stream=1),
        replace(fields, values=np.zeros(3, np.int32)),
    ):
        endpoint.receive(bundle(encode(other)), MS)
    assert endpoint.counters["drop_foreign"] == 3
    for other in (
        replace(fields, slot=1),
        replace(fields, slot=9),
        replace(fields, version=1),
        replace(fields, chunk=2),
    ):
        endpoint.receive(bundle(encode(other)), MS)
    assert endpoint.counters["duplicates"] == 4
    assert endpoint.next_event() is None
    assert array.tolist() == [4, 5]
    endpoint.receive(bundle(answer), MS)
    assert isinstance(endpoint.next_event(), CallCompleted)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=20))
def test_any_bytes_are_accepted_or_counted(core: str, datagrams: list[bytes]) -> None:
    bench = Bench(config(), core)
    bench.submit([1])
    endpoint = bench.endpoints[0]
    frames = endpoint.frames_to_send(0)
    for datagram in datagrams:
        endpoint.receive(bundle(datagram), 0)
        bench.switch.process(bundle(datagram), 0)
    endpoint.receive(bundle(*bench.through_switch(frames)[0]), MS)
    assert isinstance(endpoint.next_event(), CallCompleted)


def test_timeout_probes_and_backs_off(core: str) -> None:
    """W7: the lowest chunks only, at doubling intervals; answered probes let 2 others follow each, the latest first."""
    bench = Bench(config(window=32, rto_initial_ns=50 * MS, rto_min_ns=20 * MS, rto_max_ns=300 * MS), core)
    bench.submit(list(range(64)))
    endpoint = bench.endpoints[0]
    frames = endpoint.frames_to_send(0)
    assert endpoint.next_deadline_ns() == 50 * MS
    endpoint.handle_timer(50 * MS - 1)
    assert endpoint.counters["timeouts"] == 0
    now = 0
    for wait_ms in (50, 100, 200, 300, 300):
        now += wait_ms * MS
        assert endpoint.next_deadline_ns() == now
        endpoint.handle_timer(now)
        sent = endpoint.frames_to_send(now)
        assert chunks(sent) == list(range(PROBES))
        assert all(row[3] & FLAG_RETRANSMISSION for row in sent)
    answers = bench.through_switch(frames)[0]
    endpoint.receive(bundle(answers[0]), now + MS)
    # chunk 0 was resent: no round-trip sample (Karn), but the silence is over
    assert endpoint.next_deadline_ns() == now + MS + 50 * MS
    assert chunks(endpoint.frames_to_send(now + MS)) == [31, 30]
    endpoint.receive(bundle(answers[1], answers[2]), now + MS)
    assert chunks(endpoint.frames_to_send(now + MS)) == [29, 28, 27, 26]
    endpoint.receive(bundle(answers[4], answers[3]), now + MS)  # a first transmission is answered: all is well again
    assert len(endpoint.frames_to_send(now + MS)) == 0


def test_a_second_timeout_after_answered_probes_means_loss(core: str) -> None:
    """W7: then answered retransmissions let the lowest follow, until what was first sent before is answered."""
    bench = Bench(config(window=32, rto_initial_ns=50 * MS, rto_min_ns=20 * MS, rto_max_ns=300 * MS), core)
    bench.submit(list(range(68)))  # 34 chunks: the last two wait for slots
    endpoint = bench.endpoints[0]
    answers = bench.through_switch(endpoint.frames_to_send(0))[0]

    def answer(*results: bytes, now_ns: int) -> list[int]:
        """The chunks that follow these results; those sent for the first time are answered at once."""
        endpoint.receive(bundle(*results), now_ns)
        frames = endpoint.frames_to_send(now_ns)
        new = [row for row in frames if not row[3] & FLAG_RETRANSMISSION]
        if new:
            endpoint.receive(bundle(*bench.through_switch(np.array(new))[0]), now_ns)
        return chunks(frames)

    endpoint.handle_timer(50 * MS)
    assert chunks(endpoint.frames_to_send(50 * MS)) == [0, 1, 2, 3]
    assert answer(answers[0], now_ns=50 * MS) == [31, 30, 32]  # the result of 32, sent since, changes nothing
    endpoint.handle_timer(endpoint.next_deadline_ns() or 0)
    now_ns = 200 * MS
    assert chunks(endpoint.frames_to_send(now_ns)) == [1, 2, 3, 4]
    assert answer(answers[1], answers[2], now_ns=now_ns) == [5, 6, 7, 8, 33]  # nor that of 33
    assert answer(answers[3], now_ns=now_ns) == [9, 10]
    assert answer(answers[20], answers[4], now_ns=now_ns) == []


def test_a_timeout_is_no_evidence_once_all_that_it_found_is_answered(core: str) -> None:
    """W7: all of a short call was resent and answered; the next call's timeout may be too early again."""
    bench = Bench(config(window=32, rto_initial_ns=50 * MS, rto_min_ns=20 * MS), core)
    bench.submit(list(range(2 * PROBES)))
    endpoint = bench.endpoints[0]
    answers = bench.through_switch(endpoint.frames_to_send(0))[0]
    endpoint.handle_timer(50 * MS)
    assert chunks(endpoint.frames_to_send(50 * MS)) == list(range(PROBES))
    endpoint.receive(bundle(*answers), 50 * MS)
    bench.submit(list(range(64)))
    answers = bench.through_switch(endpoint.frames_to_send(60 * MS))[0]
    endpoint.handle_timer(160 * MS)
    assert chunks(endpoint.frames_to_send(160 * MS)) == list(range(PROBES, 2 * PROBES))
    endpoint.receive(bundle(answers[0]), 160 * MS)
    assert chunks(endpoint.frames_to_send(160 * MS)) == [PROBES + 31, PROBES + 30]


@pytest.mark.parametrize(("rows", "resent"), [(1, 3 * PROBES), (8, PROBES)])
def test_a_timeout_too_early_costs_a_few_chunks(core: str, rows: int, resent: int) -> None:
    """W7: results that were only late come in bundles of so many; the first of a chunk that wasn't resent ends it."""
    window, count = 64, 400
    bench = Bench(config(window=window, rto_initial_ns=10 * MS), core)
    bench.submit(list(range(2 * count)))
    endpoint = bench.endpoints[0]
    waiting = deque(bench.through_switch(endpoint.frames_to_send(0))[0])
    endpoint.handle_timer(10 * MS)
    while not isinstance(endpoint.next_event(), CallCompleted):
        waiting.extend(bench.through_switch(endpoint.frames_to_send(10 * MS))[0])
        endpoint.receive(bundle(*(waiting.popleft() for _ in range(min(rows, len(waiting))))), 10 * MS)
    assert endpoint.counters["timeouts"] == 1
    assert endpoint.counters["sent"] == count
    assert endpoint.counters["retransmitted"] == resent


def test_first_probes_are_the_oldest_chunks(core: str) -> None:
    bench = Bench(config(window=8), core)
    bench.submit(list(range(16)))
    endpoint = bench.endpoints[0]
    endpoint.frames_to_send(0)
    endpoint.handle_timer(200 * MS)
    assert chunks(endpoint.frames_to_send(200 * MS)) == list(range(PROBES))


def test_rto_follows_the_round_trip(core: str) -> None:
    """W7: RFC 6298 on first transmissions, between the job's floor and ceiling."""
    bench = Bench(config(window=1, rto_min_ns=20 * MS, rto_max_ns=1000 * MS), core)
    bench.submit(list(range(200)))
    endpoint = bench.endpoints[0]
    now = 0
    for round_trip_ms, low_ms, high_ms in ((1, 20, 20), (100, 100, 140), (1000, 1000, 1000)):
        for _ in range(30):
            answers = bench.through_switch(endpoint.frames_to_send(now))[0]
            now += round_trip_ms * MS
            endpoint.receive(bundle(*answers), now)
        endpoint.frames_to_send(now)
        deadline = endpoint.next_deadline_ns()
        assert deadline is not None
        assert low_ms * MS <= deadline - now <= high_ms * MS
        endpoint.receive(bundle(*bench.through_switch(bundle(frame_of(endpoint)))[0]), now)


def test_a_small_window_learns_of_a_longer_round_trip(core: str) -> None:
    """W7: a timeout resends all of it, so that no result is a sample; the next one must come later."""
    bench = Bench(config(window=2, rto_min_ns=5 * MS), core)
    bench.submit(list(range(80)))
    endpoint, now, under_way = bench.endpoints[0], 0, deque[tuple[int, Bundle]]()
    while not isinstance(endpoint.next_event(), CallCompleted):
        frames = endpoint.frames_to_send(now)
        round_trip_ms = 1 if endpoint.counters["sent"] < 20 else 30
        under_way.extend((now + round_trip_ms * MS, bundle(row)) for row in bench.through_switch(frames)[0])
        now += MS
        while under_way and under_way[0][0] <= now:
            endpoint.receive(under_way.popleft()[1], now)
        endpoint.handle_timer(now)
    assert 0 < endpoint.counters["retransmitted"] <= 8


def frame_of(endpoint: Endpoint | NativeEndpoint) -> bytes:
    """The frame in flight of a window of one, rebuilt from the window's state by a timeout far in the future."""
    endpoint.handle_timer(1 << 62)
    return endpoint.frames_to_send(1 << 61)[0].tobytes()


def test_overtaken_chunks_are_resent_at_once(core: str) -> None:
    """W8: a chunk is lost when enough chunks that were first sent after it have their results."""
    bench = Bench(config(window=8), core)
    bench.submit(list(range(64)))
    endpoint = bench.endpoints[0]
    answers = bench.through_switch(endpoint.frames_to_send(0))[0]
    endpoint.receive(bundle(*answers[1:OVERTAKEN]), MS)
    assert chunks(endpoint.frames_to_send(MS)) == [9, 10, 11]
    endpoint.receive(bundle(answers[OVERTAKEN]), MS)
    frames = endpoint.frames_to_send(MS)
    assert chunks(frames) == [0, 12]
    assert endpoint.counters["retransmitted"] == 1
    # lost again: only chunks sent after the second copy are evidence, and that copy is none
    endpoint.receive(bundle(*answers[5:]), 2 * MS)
    assert chunks(endpoint.frames_to_send(2 * MS)) == [13, 14, 15]
    assert endpoint.counters["timeouts"] == 0


def test_a_late_rank_is_no_loss(core: str) -> None:
    """W7, W8: rank 1 comes half a second late. Rank 0 has probed, and resends nothing more when the results come."""
    bench = Bench(config(workers=2, window=32), core)
    bench.submit(list(range(64)))
    early, late = bench.endpoints
    bench.through_switch(early.frames_to_send(0), 0)
    now = 0
    while now < 500 * MS:
        deadline = early.next_deadline_ns()
        assert deadline is not None
        now = deadline
        early.handle_timer(now)
        bench.through_switch(early.frames_to_send(now), 0)
    probes = early.counters["retransmitted"]
    answers = bench.through_switch(late.frames_to_send(now), 1)[0]
    assert len(answers) == 32
    early.receive(bundle(*answers), now + MS)
    assert len(early.frames_to_send(now + MS)) == 0
    assert early.counters["retransmitted"] == probes <= 3 * PROBES


def test_giving_up_names_the_missing_ranks(core: str) -> None:
    """W9: rank 2 never sends. The switch's `seen` shows which ranks are missing."""
    job = config(workers=3, window=2, retry_limit=3)
    bench = Bench(job, core)
    bench.submit([1, 2, 3, 4])
    waiting = bench.endpoints[0]
    for rank in (0, 1):
        bench.through_switch(bench.endpoints[rank].frames_to_send(0), rank)
    for _ in range(job.retry_limit):
        deadline = waiting.next_deadline_ns()
        assert deadline is not None
        waiting.handle_timer(deadline)
        waiting.frames_to_send(deadline)
        assert waiting.next_event() is None
    deadline = waiting.next_deadline_ns()
    assert deadline is not None
    waiting.handle_timer(deadline)
    failed = waiting.next_event()
    assert isinstance(failed, StreamFailed)
    assert (failed.stream, failed.slot, failed.version, failed.chunk) == (0, 0, 0, 0)
    seen = bench.switch.seen(failed.slot, failed.version)
    missing = tuple(sorted(set(range(3)) - set(seen.ranks)))
    error = AggregationFailed("no result", job="j", stream=0, slot=failed.slot, chunk=failed.chunk, missing=missing)
    assert "missing ranks: 2" in str(error)
    assert waiting.next_deadline_ns() is None  # silent from now on
    assert len(waiting.frames_to_send(deadline)) == 0


def test_giving_up_does_not_wait_for_room_on_the_link(core: str) -> None:
    """W9: what a timeout marks for resending is never taken, since the link stays full."""
    job = config(workers=2, window=PROBES + 2, retry_limit=4)
    endpoint = ENDPOINTS[core](job, 0)
    endpoint.submit(0, array_call(np.ones(2 * (PROBES + 2), np.int32), "sum", job))
    assert len(endpoint.frames_to_send(0)) == PROBES + 2
    now = 0
    for _ in range(job.retry_limit + 1):
        assert endpoint.next_event() is None
        deadline = endpoint.next_deadline_ns()
        assert deadline is not None, f"waits for ever after {endpoint.counters['timeouts']} timeouts"
        assert deadline > now
        now = deadline
        endpoint.handle_timer(now)
    assert isinstance(endpoint.next_event(), StreamFailed)
    assert endpoint.next_deadline_ns() is None


def test_no_timer_runs_for_what_was_answered_while_it_waited_to_be_resent(core: str) -> None:
    bench = Bench(config(workers=1, window=2), core)
    bench.submit([1, 2])
    endpoint = bench.endpoints[0]
    results = bench.through_switch(endpoint.frames_to_send(0))[0]
    deadline = endpoint.next_deadline_ns()
    assert deadline is not None
    endpoint.handle_timer(deadline)
    endpoint.receive(bundle(*results), deadline + MS)
    assert isinstance(endpoint.next_event(), CallCompleted)
    assert endpoint.next_deadline_ns() is None
    assert len(endpoint.frames_to_send(deadline + MS)) == 0


def test_urgent_streams_send_first_and_equal_ones_round_robin(core: str) -> None:
    ranges = (StreamConfig(0, 4, priority=1), StreamConfig(4, 4, priority=0), StreamConfig(8, 4, priority=1))
    bench = Bench(JobConfig(3, 7, 1, 2, ranges), core)
    for stream in range(3):
        bench.submit(list(range(8)), stream)
    endpoint = bench.endpoints[0]
    order = []
    for _ in range(6):
        order += [decode(row.tobytes()).stream for row in endpoint.frames_to_send(0, limit=2)]
    assert order[:4] == [1, 1, 1, 1]
    assert set(order[4:8]) == {0, 2}
    assert sorted(order) == [0] * 4 + [1] * 4 + [2] * 4


def test_chunk_numbers_wrap_on_the_wire(core: str) -> None:
    """P3, W2: slots and versions follow the unwrapped number, the wire carries it modulo 2**32.

    Walking there would take 2**32 chunks, so the endpoint's counters are set as if they had been walked.
    """
    bench = Bench(config(window=3), core)
    endpoint = bench.endpoints[0]
    start = (1 << 32) - 2
    if isinstance(endpoint, NativeEndpoint):
        endpoint.start_at(0, start)
    else:
        state = endpoint._windows[0]
        state.end = state.limit = start
        following = sorted(start + (offset - start) % 3 for offset in range(3))
        state._free = following
        state.chunk = [next(c for c in following if c % 3 == offset) for offset in range(3)]
    share = bench.switch._aggregator
    for chunk in range(start, start + 6):
        slot, version = bench.job.place(0, chunk)
        share._held[version][slot] = (chunk - 6) % (1 << 32)
    [array] = bench.submit([10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
    seen = []
    for turn in range(2):
        frames = endpoint.frames_to_send(turn * MS)
        seen += chunks(frames)
        endpoint.receive(bundle(*bench.through_switch(frames)[0]), turn * MS)
    assert seen == [2**32 - 2, 2**32 - 1, 0, 1, 2]
    assert isinstance(endpoint.next_event(), CallCompleted)
    assert array.tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert bench.switch.counters == {"broadcast": 5}


@settings(max_examples=60)
@given(st.data())
def test_every_input_in_any_order_is_legal(core: str, data: st.DataObject) -> None:
    """Submit, send, lose, answer, repeat, wait: whatever comes, frames stay well-formed and calls end exactly."""
    workers = data.draw(st.integers(1, 2))
    bench = Bench(config(workers=workers, window=data.draw(st.integers(1, 4)), streams=2, retry_limit=1000), core)
    waiting: list[tuple[int, bytes]] = []
    arrays: list[tuple[list[int], list[NDArray[np.int32]]]] = []
    now = 0
    steps = st.sampled_from(["submit", "send", "answer", "lose", "repeat", "timer"])
    for number, step in enumerate(data.draw(st.lists(steps, max_size=40)) + ["finish"] * 400):
        rank = number % workers
        endpoint = bench.endpoints[rank]
        now += MS
        if step == "submit":
            values = data.draw(st.lists(st.integers(-9, 9), max_size=9))
            arrays.append((values, bench.submit(values, len(arrays) % 2)))
        if step in ("timer", "finish"):
            now = max(now, endpoint.next_deadline_ns() or 0)
            endpoint.handle_timer(now)
        if step in ("send", "finish"):
            frames = endpoint.frames_to_send(now)
            assert frames.shape[1] == frame_bytes(bench.job.elements)
            waiting += [(to, f) for to, sent in bench.through_switch(frames, rank).items() for f in sent]
        if waiting and step == "lose":
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if waiting and step in ("answer", "repeat"):
            index = data.draw(st.integers(0, len(waiting) - 1))
            to, frame = waiting[index] if step == "repeat" else waiting.pop(index)
            bench.endpoints[to].receive(bundle(frame), now)
        if step == "finish":
            for to, frame in waiting:
                bench.endpoints[to].receive(bundle(frame), now)
            waiting.clear()
    for values, results in arrays:
        assert all(result.tolist() == [workers * v for v in values] for result in results)


def test_rank_must_be_of_the_job(core: str) -> None:
    with pytest.raises(AssertionError):
        ENDPOINTS[core](config(workers=2), 2)


def made(core: str, job: JobConfig, rank: int, wire_rank: int, described: bool) -> Endpoint | NativeEndpoint:
    end, array = ENDPOINTS[core](job, rank, wire_rank), np.arange(5, dtype=np.float32)
    call = array_call(array, "sum", job)
    call.description = CallSignature("allreduce", "sum", array.dtype, 5).words(0) if described else None
    end.submit(0, call)
    return end


def test_packets_carry_the_wire_rank_and_descriptions_the_rank_in_the_job(core: str) -> None:
    """H1, W12: and who differs is named by the rank in the job, too."""
    job = JobConfig(3, 7, 4, 64, (StreamConfig(0, 4),))
    end = made(core, job, 3, 1, described=True)
    frames = [decode(row.tobytes()) for row in end.frames_to_send(0)]
    assert {frame.rank for frame in frames} == {1}
    head = frames[0]
    words = head.values[:16].reshape(4, 4)
    assert [bool((row == -(2**31)).all()) for row in words] == [True, True, True, False]
    words[:] = words[3]
    words[2, 1] = 6
    result = np.frombuffer(encode(replace(head, result=True)), np.uint8)[np.newaxis]
    end.receive(result, 1)
    event = end.next_event()
    assert isinstance(event, StreamFailed)
    assert event.rank == 2
    assert "rank 3 calls" in event.reason


def test_more_than_64_workers_have_no_small_calls(core: str) -> None:
    """W16: 64 would have one, of these few values; with more there is the scale chunk first, alone."""
    for workers, count in ((64, 2), (65, 1), (4096, 1)):
        job = JobConfig(3, 7, workers, 360, (StreamConfig(0, 4),))
        frames = made(core, job, workers - 1, 9, described=False).frames_to_send(0)
        assert len(frames) == count
        assert {decode(row.tobytes()).rank for row in frames} == {9}
