"""Worker loops against a switch loop over loopback: exact sums, whatever else arrives; and every way to end.

Both loops, Python's and the native one, take all tests but those that look into Python's endpoint or wrap its link; the
native one twice: run by who waits for a call, and by its own thread alone.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from faulty_link import FaultyLink

import transport.worker.worker_loop
from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.endpoint import StreamFailed
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.wire import Op, Packet, encode
from transport.links.link import Link
from transport.links.udp_link import UdpLink
from transport.switch.switch_loop import SwitchLoop
from transport.worker.call_future import CallFuture
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import CallLoop, WorkerLoop


class BackgroundLoop(NativeWorkerLoop):
    """Nobody who waits runs it."""

    def run_for(self, future: CallFuture, timeout_s: float | None) -> float | None:
        return timeout_s


class LoopWithEndpointInC(WorkerLoop):
    """As over links that the loop in C doesn't know."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, native=True, **options)


LOOPS: dict[str, type[CallLoop]] = {
    "python": WorkerLoop,
    "endpoint": LoopWithEndpointInC,
    "native": NativeWorkerLoop,
    "background": BackgroundLoop,
}
LOOPBACK = ("127.0.0.1", 0)
LIVENESS_S = 120.0


def job_of(workers: int, elements: int = 32, window: int = 16, streams: int = 2, **options: int) -> JobConfig:
    shares = tuple(StreamConfig(index * window, window) for index in range(streams))
    return JobConfig(job_id=7, generation=3, workers=workers, elements=elements, streams=shares, **options)


class Bench:
    """A switch and one worker per rank on loopback links, which `wrap` may replace."""

    def __init__(
        self,
        job: JobConfig,
        plane: str = "reference",
        wrap: Callable[[Link, int], Link] | None = None,
        loop: type[CallLoop] = WorkerLoop,
    ) -> None:
        wrap = wrap or (lambda link, _: link)
        self.job = job
        self.links = [UdpLink(LOOPBACK) for _ in range(job.workers)]
        self.switch_link = UdpLink(LOOPBACK)
        self.switch_address = self.switch_link.address
        end = max(s.first_slot + s.window_slots for s in job.streams)
        self.switch = SwitchLoop(wrap(self.switch_link, 99), DATAPLANES[plane](end, job.elements))
        self.switch.start()
        self.switch.admit(job, [link.address for link in self.links])
        self.workers = [loop(wrap(link, rank), job, rank, self.switch_address) for rank, link in enumerate(self.links)]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.switch.stop()

    def allreduce(self, arrays: list[np.ndarray], stream: int = 0, op: str = "sum") -> list[Future[Any]]:
        return [
            worker.submit(stream, array_call(array, op, self.job))
            for worker, array in zip(self.workers, arrays, strict=True)
        ]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> type[CallLoop]:
    if request.param != "python" and library.missing():
        pytest.skip(f"native worker loop: {library.missing()}")
    return LOOPS[request.param]


@pytest.fixture
def bench(loop: type[CallLoop]) -> Iterator[Callable[..., Bench]]:
    """Makes benches of one kind of worker loop, and closes them."""
    yield from _benches(loop)


@pytest.fixture
def python_bench() -> Iterator[Callable[..., Bench]]:
    yield from _benches(WorkerLoop)


def _benches(loop: type[CallLoop]) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def maker(*args: Any, **options: Any) -> Bench:
        made.append(Bench(*args, loop=loop, **options))
        return made[-1]

    yield maker
    for one in made:
        one.close()


def integers(workers: int, length: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(-(1 << 31), 1 << 31, length, np.int64).astype(np.int32) for _ in range(workers)]


def check_sums(bench: Bench, calls: int, length: int = 1000, seed: int = 0) -> None:
    """Many calls at once, over all streams; every rank must end with the exact sum."""
    running = []
    for call in range(calls):
        arrays = integers(bench.job.workers, length + call, seed + call)
        expected = np.sum(np.stack(arrays).astype(np.int64), axis=0).astype(np.int32)  # wraps as the switch does
        running.append((arrays, expected, bench.allreduce(arrays, call % len(bench.job.streams))))
    for arrays, expected, futures in running:
        for future in futures:
            future.result(LIVENESS_S)
        for array in arrays:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("plane", WITHOUT_P4)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_sums_are_exact(bench: Callable[..., Bench], workers: int, plane: str) -> None:
    one = bench(job_of(workers), plane)
    check_sums(one, calls=20)
    for worker in one.workers:
        counters = worker.counters
        assert counters["results"] == counters["sent"]
        assert counters["drop_unknown_sender"] == 0
    assert one.switch.counters()["broadcast"] == one.workers[0].counters["results"]


@pytest.mark.parametrize("elements", [360, 2000])
def test_floats_and_maxima_and_large_calls(bench: Callable[..., Bench], elements: int) -> None:
    one = bench(job_of(3, elements, window=64))
    floats = [np.full(100_000, value, np.float32) for value in (0.5, -2.0, 8.0)]
    largest = [np.arange(rank, 5000 * (rank + 1), rank + 1, dtype=np.int32)[:5000] for rank in range(3)]
    expected = np.maximum.reduce(largest)
    for future in one.allreduce(floats, 0) + one.allreduce(largest, 1, "max"):
        future.result(LIVENESS_S)
    assert all((array == 6.5).all() for array in floats)
    assert all((array == expected).all() for array in largest)


def test_a_future_resolves_to_the_given_result(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1))
    array = np.ones(10, np.int32)
    call = array_call(array, "sum", one.job)
    future = one.workers[0].submit(0, call)
    assert not future.cancel()
    assert future.result(LIVENESS_S) is call
    assert one.workers[0].submit(0, array_call(array, "sum", one.job), result=array).result(LIVENESS_S) is array
    assert one.workers[0].submit(0, array_call(array[:0], "sum", one.job), result=array).result(LIVENESS_S) is array


def test_calls_may_come_from_many_threads(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1, streams=4))
    failures = []

    def caller(stream: int) -> None:
        for value in range(50):
            array = np.full(100, value, np.int32)
            one.workers[0].submit(stream, array_call(array, "sum", one.job)).result(LIVENESS_S)
            if not (array == value).all():
                failures.append((stream, value))

    threads = [threading.Thread(target=caller, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def forgeries(job: JobConfig) -> list[np.ndarray]:
    """Packets of the job as only a worker or the switch could know them, and their ruins."""
    frames = []
    for chunk in range(job.streams[0].window_slots * 2):
        slot, version = job.place(0, chunk)
        for rank in range(job.workers):
            for result in (False, True):
                values = np.full(job.elements, 12345, np.int32)
                packet = Packet(job.job_id, job.generation, 0, rank, Op.SUM, slot, version, chunk, values, result)
                frame = np.frombuffer(encode(packet), np.uint8)[np.newaxis].copy()
                frames += [frame, frame[:, :-1].copy(), frame[:, :10].copy(), frame[:, :0].copy()]
    return frames


@pytest.mark.parametrize("plane", WITHOUT_P4)
def test_packets_of_unknown_senders_change_nothing(bench: Callable[..., Bench], plane: str) -> None:
    one = bench(job_of(2), plane)
    end = threading.Event()
    targets = [one.switch_address, *(link.address for link in one.links)]

    def spray() -> None:
        link, random, forged = UdpLink(LOOPBACK), np.random.default_rng(3), forgeries(one.job)
        while not end.wait(0.001):
            for target in targets:
                for index in random.integers(0, len(forged), 20):
                    link.send(forged[index], target)
                link.send(random.integers(0, 256, (4, int(random.integers(0, 3000))), np.uint8), target)
        link.close()

    sprayer = threading.Thread(target=spray)
    sprayer.start()
    try:
        for turn in range(10):
            check_sums(one, calls=4, seed=turn)
    finally:
        end.set()
        sprayer.join()
    assert one.switch.counters()["drop_unknown_sender"] > 0
    assert all(worker.counters["drop_unknown_sender"] > 0 for worker in one.workers)


def test_bad_packets_from_a_worker_are_counted_and_change_nothing(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(2))
    other = replace(one.job, generation=2)
    bad = forgeries(other)
    random = np.random.default_rng(4)
    for frame in bad + [random.integers(0, 256, (3, int(size)), np.uint8) for size in random.integers(0, 2000, 100)]:
        one.links[0].send(frame, one.switch_address)
    check_sums(one, calls=10)
    counters = one.switch.counters()
    for reason in ("generation", "result", "short", "length", "magic"):
        assert counters[f"drop_{reason}"] > 0, reason
    assert counters["drop_unknown_sender"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_sums_stay_exact_under_faults(python_bench: Callable[..., Bench], seed: int) -> None:
    made: list[FaultyLink] = []

    def wrap(link: Link, number: int) -> Link:
        made.append(FaultyLink(link, 100 * seed + number, loss=0.02, duplicate=0.05, reorder=0.1, full=0.1))
        return made[-1]

    one = python_bench(job_of(3, rto_initial_ns=30_000_000, rto_min_ns=10_000_000), wrap=wrap)
    check_sums(one, calls=8, seed=seed)
    for kind in ("lost", "duplicated", "reordered", "refused"):
        assert sum(getattr(link, kind) for link in made) > 0, kind


def test_an_idle_loop_sleeps(python_bench: Callable[..., Bench]) -> None:
    waits: list[float] = []

    class Watched(FaultyLink):
        def wait(self, timeout_s: float | None, *, writable: bool = False) -> bool:
            waits.append(time.monotonic())
            return super().wait(timeout_s, writable=writable)

    one = python_bench(job_of(1), wrap=lambda link, number: Watched(link, number))
    check_sums(one, calls=3)
    time.sleep(0.1)
    before = len(waits)
    time.sleep(0.3)
    assert len(waits) - before <= 4  # a worker and a switch that each wake at most once a second, and a margin
    check_sums(one, calls=1)


def test_a_missing_rank_fails_the_call_and_every_later_one(bench: Callable[..., Bench]) -> None:
    job = job_of(2, rto_initial_ns=5_000_000, rto_min_ns=2_000_000, rto_max_ns=10_000_000, retry_limit=3)
    one = bench(job)
    array = np.ones(100, np.int32)
    future = one.workers[0].submit(1, array_call(array, "sum", job))
    with pytest.raises(AggregationFailed, match=r"rank 0.*timeouts") as caught:
        future.result(LIVENESS_S)
    error = caught.value
    assert (error.job, error.generation, error.stream, error.slot, error.chunk) == (7, 3, 1, 16, 0)
    assert one.workers[0].submit(0, array_call(array, "sum", job)).exception(LIVENESS_S) is error
    assert one.workers[0].failure is error
    assert one.switch.seen(16, 0).ranks == (0,)
    assert one.workers[1].failure is None


class Watch:
    """It notes what a loop says."""

    def __init__(self) -> None:
        self.failed: list[StreamFailed] = []
        self.reasons: list[str] = []
        self.reported, self.ended = threading.Event(), threading.Event()

    def stream_failed(self, event: StreamFailed) -> None:
        self.failed.append(event)
        self.reported.set()

    def loop_ended(self, reason: str, event: StreamFailed | None = None) -> None:
        self.reasons.append(reason)
        self.ended.set()


def test_a_failed_stream_is_reported_once_and_fails_with_the_switch_s_answer(loop: type[CallLoop]) -> None:
    job = job_of(2, rto_initial_ns=5_000_000, rto_min_ns=2_000_000, rto_max_ns=10_000_000, retry_limit=2)
    nobody = UdpLink(LOOPBACK)
    watch = Watch()
    worker = loop(UdpLink(LOOPBACK), job, 0, nobody.address, watch=watch)
    futures = [worker.submit(stream, array_call(np.ones(9, np.int32), "sum", job)) for stream in (0, 1)]
    assert watch.reported.wait(LIVENESS_S)
    time.sleep(0.1)
    assert not futures[0].done()
    told = AggregationFailed("rank 1 is missing", job=7, missing=(1,))
    worker.fail(told)
    worker.fail(RuntimeError("too late"))
    assert [future.exception(LIVENESS_S) for future in futures] == [told, told]
    assert len(watch.failed) == 1
    worker.close()
    nobody.close()


def test_a_failed_stream_fails_even_without_a_reason_from_the_switch(
    monkeypatch: pytest.MonkeyPatch, loop: type[CallLoop]
) -> None:
    monkeypatch.setattr(transport.worker.worker_loop, "DIAGNOSIS_S", 0.05)
    job = job_of(2, rto_initial_ns=5_000_000, rto_min_ns=2_000_000, rto_max_ns=10_000_000, retry_limit=2)
    nobody = UdpLink(LOOPBACK)
    watch = Watch()
    worker = loop(UdpLink(LOOPBACK), job, 0, nobody.address, watch=watch)
    future = worker.submit(0, array_call(np.ones(9, np.int32), "sum", job))
    assert watch.ended.wait(LIVENESS_S)
    assert watch.reasons == ["no result after 3 timeouts in a row"]
    assert not future.done()
    assert [call.ended(None) for call in worker.stop(AggregationFailed("the switch is lost", job=7))] == [None]
    assert future.done()
    worker.close()
    nobody.close()


@pytest.mark.parametrize("calls", [1, 2])
def test_a_link_that_stays_full_fails_the_call(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    job = job_of(2, rto_initial_ns=5_000_000, rto_min_ns=2_000_000, rto_max_ns=10_000_000, retry_limit=6)
    nobody, link = UdpLink(LOOPBACK), UdpLink(LOOPBACK)
    monkeypatch.setattr(link, "send", lambda frames, to: 0)
    worker = WorkerLoop(link, job, 0, nobody.address)
    futures = [worker.submit(0, array_call(np.ones(9, np.int32), "sum", job)) for _ in range(calls)]
    assert all(isinstance(future.exception(LIVENESS_S), AggregationFailed) for future in futures)
    worker.close()
    nobody.close()


@pytest.mark.parametrize("place", ["receive", "frames_to_send", "handle_timer", "submit", "next_deadline_ns"])
def test_an_unexpected_exception_reaches_every_caller(
    python_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    one = python_bench(job_of(2, rto_initial_ns=20_000_000))
    check_sums(one, calls=2)
    broken = one.workers[0]
    bug = ZeroDivisionError("a bug")

    def raiser(*args: object) -> None:
        raise bug

    monkeypatch.setattr(broken.endpoint, place, raiser)
    futures = [broken.submit(stream, array_call(np.ones(50, np.int32), "sum", one.job)) for stream in (0, 1)]
    if place == "receive":
        one.workers[1].submit(0, array_call(np.ones(50, np.int32), "sum", one.job))
    assert [future.exception(LIVENESS_S) for future in futures] == [bug, bug]
    assert broken.submit(0, array_call(np.ones(5, np.int32), "sum", one.job)).exception(0) is bug


def test_a_call_that_finds_no_memory_ends_the_loop(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the stream's next call would be summed with the others' present one."""
    one = bench(job_of(2))
    first = one.workers[0].submit(0, array_call(np.ones(50, np.int32), "sum", one.job))

    def refuse(*args: object) -> None:
        raise MemoryError("no memory for one more call")

    with monkeypatch.context() as patch:
        patch.setattr(one.workers[0], "_enqueue", refuse)
        second = one.workers[0].submit(0, array_call(np.ones(50, np.int32), "sum", one.job))
    third = one.workers[0].submit(0, array_call(np.ones(50, np.int32), "sum", one.job))
    for future in (first, second, third):
        error = future.exception(LIVENESS_S)
        assert isinstance(error, AggregationFailed)
        assert str(error) == "job 7 (generation 3): rank 0: the worker loop ended: no memory for one more call"


def test_a_link_that_breaks_reaches_every_caller(loop: type[CallLoop]) -> None:
    job = job_of(1)
    link = UdpLink(LOOPBACK)
    worker = loop(link, job, 0, ("127.0.0.1", 9))
    os.close(link._socket.detach())  # as if someone had closed our descriptor
    future = worker.submit(0, array_call(np.ones(5, np.int32), "sum", job))
    error = future.exception(LIVENESS_S)
    assert isinstance(error, AggregationFailed)
    assert isinstance(error.__cause__, OSError)
    assert str(error).startswith("job 7 (generation 3): rank 0: the worker loop ended: ")
    worker.close()


def test_what_a_broken_link_leaves_is_handed_over(loop: type[CallLoop]) -> None:
    nobody, link, watch, job = UdpLink(LOOPBACK), UdpLink(LOOPBACK), Watch(), job_of(2)
    worker = loop(link, job, 0, nobody.address, watch=watch)
    futures = [worker.submit(0, array_call(np.ones(5, np.int32), "sum", job))]
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), link.fileno())  # closed, and the number in use again
    futures.append(worker.submit(1, array_call(np.ones(5, np.int32), "sum", job)))
    with pytest.raises(TimeoutError):  # nor does a thread that waits, and runs the loop, fail it
        futures[1].result(0.1)
    assert watch.ended.wait(LIVENESS_S)
    assert watch.reasons[0].startswith("the worker loop ended: ")
    futures.append(worker.submit(1, array_call(np.ones(5, np.int32), "sum", job)))
    listed = worker.stop(AggregationFailed("the switch is lost", job=7))
    assert not any(future.done() for future in futures)
    assert [call.stream for call in listed] == [0, 1, 1]
    for call in listed:
        assert not call.held.any()
        assert (call.call.array == 1).all()
        call.ended(None)
    assert all(future.done() for future in futures)
    worker.close()
    nobody.close()


def test_a_stream_the_job_lacks_is_refused_at_once(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1))
    for stream in (-1, 2):
        with pytest.raises(ValueError, match="has 2"):
            one.workers[0].submit(stream, array_call(np.ones(5, np.int32), "sum", one.job))
    check_sums(one, calls=1)


def test_a_switch_address_that_can_not_be_reached_is_refused(loop: type[CallLoop]) -> None:
    link = UdpLink(LOOPBACK)
    with pytest.raises(JobError, match="IPv4"):
        loop(link, job_of(1), 0, ("::1", 5))
    link.close()


def test_close_fails_what_is_pending_and_leaves_nothing(loop: type[CallLoop]) -> None:
    descriptors, threads = sorted(os.listdir("/proc/self/fd")), threading.enumerate()
    one = Bench(job_of(2), loop=loop)
    check_sums(one, calls=2)
    pending = one.workers[0].submit(0, array_call(np.ones(500, np.int32), "sum", one.job))
    for _ in range(2):
        one.close()
    assert isinstance(pending.exception(0), AggregationFailed)
    late = one.workers[0].submit(0, array_call(np.ones(5, np.int32), "sum", one.job))
    assert isinstance(late.exception(0), AggregationFailed)
    assert one.workers[0].counters["results"] > 0
    assert threading.enumerate() == threads
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def test_a_callback_may_close_the_loop(bench: Callable[..., Bench]) -> None:
    one = bench(job_of(1))
    closed = threading.Event()

    def close(future: Future[Any]) -> None:
        one.workers[0].close()
        closed.set()

    one.workers[0].submit(0, array_call(np.ones(5, np.int32), "sum", one.job)).add_done_callback(close)
    assert closed.wait(LIVENESS_S)
    one.workers[0].close()
    assert isinstance(one.workers[0].failure, AggregationFailed)


def test_a_callback_that_blocks_is_named(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.worker.worker_loop, "JOIN_S", 0.05)
    one = bench(job_of(2))
    hold, entered = threading.Event(), threading.Event()

    def block(future: Future[Any]) -> None:
        entered.set()
        hold.wait(LIVENESS_S)

    one.workers[0].submit(0, array_call(np.ones(5, np.int32), "sum", one.job)).add_done_callback(block)
    one.workers[1].submit(0, array_call(np.ones(5, np.int32), "sum", one.job))  # only now can the call end
    assert entered.wait(LIVENESS_S)
    with pytest.raises(SwitchaggError, match="callback"):
        one.workers[0].close()
    hold.set()
    monkeypatch.undo()


def test_a_full_link_delays_packets_and_loses_none(python_bench: Callable[..., Bench]) -> None:
    made: list[FaultyLink] = []

    def wrap(link: Link, number: int) -> Link:
        made.append(FaultyLink(link, number, full=0.3))
        return made[-1]

    never_ns = 100_000_000_000
    one = python_bench(job_of(2, rto_initial_ns=never_ns, rto_min_ns=never_ns, rto_max_ns=never_ns), wrap=wrap)
    check_sums(one, calls=10)
    while not all(link.refused for link in made):  # on a busy machine a few large bundles may do for ten calls
        check_sums(one, calls=10)
    for worker in one.workers:
        assert worker.counters["retransmitted"] == 0
        assert worker.counters["sent"] == worker.counters["results"] == worker.counters["link_sent_datagrams"]
