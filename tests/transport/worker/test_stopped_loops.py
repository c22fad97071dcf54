"""Loops that stop without failing their calls: what is handed over, which rows hold results, who waits meanwhile."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_worker_loop import LIVENESS_S, LOOPBACK, LOOPS, job_of

import transport.worker.native_worker_loop
import transport.worker.worker_loop
from switchagg.calls.array_calls import array_call, form_of
from switchagg.calls.chunked_call import ArrayCall
from switchagg.dataplane.native import NativePlane
from switchagg.description import CallSignature
from switchagg.errors import AggregationFailed, SwitchaggError
from switchagg.job import JobConfig
from switchagg.layout import shares_of
from switchagg.native import library
from transport.links.udp_link import UdpLink
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.worker.worker_loop import UnfinishedCall

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

STOPPED = AggregationFailed("the switch is lost", job=7)
STOPS = 12


class Ranks:
    """The loops of a job at a native switch, on loopback."""

    def __init__(self, job: JobConfig, kind: str, ending: ExitStack) -> None:
        self.job = job
        links = [UdpLink(LOOPBACK) for _ in range(job.workers)]
        switch_link = UdpLink(LOOPBACK)
        slots = sum(stream.window_slots for stream in job.streams)
        self._switch = NativeSwitchLoop(switch_link, NativePlane(slots, job.elements))
        self._switch.start()
        ending.callback(self._switch.stop)
        self._switch.admit(job, [link.address for link in links])
        self.loops = [LOOPS[kind](link, job, rank, switch_link.address) for rank, link in enumerate(links)]
        for loop in self.loops:
            ending.callback(loop.close)

    def submit(self, rank: int, size: int, stream: int = 0) -> "Future[Any]":
        return self.loops[rank].submit(stream, array_call(np.full(size, 3, np.int32), "sum", self.job))


@pytest.fixture
def ranks() -> Iterator[Callable[..., Ranks]]:
    with ExitStack() as ending:
        yield lambda kind, workers=2, **options: Ranks(job_of(workers, **options), kind, ending)


@pytest.mark.parametrize("kind", LOOPS)
def test_what_is_unfinished_is_handed_over_once_and_in_order(ranks: Callable[..., Ranks], kind: str) -> None:
    two = ranks(kind)
    together = [two.submit(rank, 100) for rank in range(2)]
    assert [list(future.result(LIVENESS_S).array) for future in together] == [[6] * 100] * 2
    alone = [two.submit(0, size, stream) for size, stream in ((1000, 0), (0, 0), (5, 1), (7, 0))]
    listed = two.loops[0].stop(STOPPED)
    assert alone[1].result(0).array.size == 0, "nobody is needed for it"
    assert [call.call.array.size for call in listed if call.stream == 0] == [1000, 7]
    assert [call.call.array.size for call in listed if call.stream == 1] == [5]
    assert [call.held.tolist() for call in listed if call.call.array.size == 1000] == [[False] * 32]
    assert all((call.call.array == 3).all() for call in listed)
    assert not any(future.done() for future in (alone[0], *alone[2:]))
    assert two.submit(0, 4).exception(0) is STOPPED is two.loops[0].failure
    for call in listed:
        call.ended(None if call.call.array.size > 5 else STOPPED)
    assert alone[0].result(0) is listed[0].call
    assert alone[2].exception(0) is STOPPED
    assert alone[3].done()
    assert two.loops[0].stop(AggregationFailed("again", job=7)) == []
    two.loops[0].close()


def calls_of(job: JobConfig, rank: int) -> list[tuple[int, ArrayCall]]:
    """Sums of all kinds for both streams: small ones, long ones with scale chunks, to owners and of owners."""
    numbers = np.random.default_rng(rank)
    calls = []
    for kind, dtype, size in (
        ("allreduce", np.float32, 50),
        ("allreduce", np.int32, 3000),
        ("allreduce", np.float32, 3000),
        ("reduce_scatter", np.int32, 1000),
        ("all_gather", np.float64, 500),
        ("allreduce", np.float32, 50),
        ("broadcast", np.int32, 300),
        ("allreduce", np.float32, 1700),
    ):
        for stream in range(2):
            array: NDArray[Any] = (numbers.standard_normal(size) * 1000).astype(dtype)
            call = array_call(array, "sum", job, shares=shares_of(kind))
            call.description = CallSignature(kind, "sum", array.dtype, size).words(len(calls))
            calls.append((stream, call))
    return calls


def check_rows(job: JobConfig, call: UnfinishedCall, given: NDArray[Any], result: NDArray[Any]) -> None:
    layout = form_of(call.call, job).layout
    assert call.held.shape == (layout.chunks,)
    expected = given.copy()
    for low, high in map(layout.span, np.flatnonzero(call.held).tolist()):
        expected[low:high] = result[low:high]
    assert call.call.array.tobytes() == expected.tobytes()


def stop_at_random(job: JobConfig, kind: str, seed: int, results: list[list[NDArray[Any]]]) -> NDArray[np.int64]:
    """Stop all ranks at some moment; all that they have then is what it must be. Counts calls: finished, with rows that
    hold results, with rows that hold none. results: by rank; empty: nobody stops, and it gets them."""
    rng = random.Random(seed)
    with ExitStack() as ending:
        rig = Ranks(job, kind, ending)
        calls = [calls_of(job, rank) for rank in range(job.workers)]
        given = [[call.array.copy() for _, call in of_rank] for of_rank in calls]
        futures: list[list[Future[Any]]] = [[] for _ in calls]
        listed: list[list[UnfinishedCall]] = [[] for _ in calls]
        waits = rng.random() < 0.5

        def run(rank: int) -> None:
            for number, (stream, call) in enumerate(calls[rank]):
                futures[rank].append(rig.loops[rank].submit(stream, call))
                if waits and number % 3 == 0 and call.array.size < 100:
                    with suppress(TimeoutError, AggregationFailed):
                        futures[rank][-1].result(0.02)

        def stop(rank: int, after_s: float) -> None:
            time.sleep(after_s)
            listed[rank] = rig.loops[rank].stop(STOPPED)

        with ThreadPoolExecutor(2 * job.workers) as pool:
            threads = [pool.submit(run, rank) for rank in range(job.workers)]
            if results:
                moment_s = rng.random() * 0.02
                threads += [pool.submit(stop, rank, moment_s + rng.random() * 0.002) for rank in range(job.workers)]
            for thread in threads:
                thread.result(LIVENESS_S)
        if not results:
            results += [[future.result(LIVENESS_S).array for future in of_rank] for of_rank in futures]
        counts = np.zeros(3, np.int64)
        for rank, of_rank in enumerate(calls):
            unfinished = {id(call.call): call for call in listed[rank]}
            assert len(unfinished) == len(listed[rank])
            for (_, call), future, before, after in zip(
                of_rank, futures[rank], given[rank], results[rank], strict=True
            ):
                if id(call) in unfinished:
                    handed = unfinished.pop(id(call))
                    assert not future.done()
                    check_rows(job, handed, before, after)
                    counts += [0, handed.held.any(), not handed.held.all()]
                    handed.ended(STOPPED)
                    assert future.exception(0) is STOPPED
                elif future.exception(LIVENESS_S) is None:
                    assert call.array.tobytes() == after.tobytes()
                    counts[0] += 1
                else:  # made after the stop
                    assert future.exception() is STOPPED
                    assert call.array.tobytes() == before.tobytes()
            assert not unfinished
        return counts


@pytest.mark.parametrize("kind", LOOPS)
def test_rows_are_what_they_are_said_to_be_whenever_all_stop(kind: str) -> None:
    job, results, counts = job_of(3), [], np.zeros(3, np.int64)
    stop_at_random(job, kind, 0, results)
    for seed in range(STOPS):
        counts += stop_at_random(job, kind, seed, results)
    assert counts.all(), counts


@pytest.mark.parametrize("kind", LOOPS)
def test_who_waits_is_released_when_the_call_ends(ranks: Callable[..., Ranks], kind: str) -> None:
    two = ranks(kind)
    futures = [two.submit(0, 100, stream) for stream in range(2)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(future.result, LIVENESS_S) for future in futures * 2]
        impatient = futures[0].exception
        time.sleep(0.05)
        listed = two.loops[0].stop(STOPPED)
        with pytest.raises(TimeoutError):
            impatient(0.01)
        assert not any(waiter.done() for waiter in waiting)
        for call in listed:
            call.ended(None)
        assert [waiter.result(LIVENESS_S) for waiter in waiting] == [call.call for call in listed] * 2


@pytest.mark.parametrize("kind", LOOPS)
def test_a_stop_after_a_failure_hands_over_nothing(ranks: Callable[..., Ranks], kind: str) -> None:
    two, failure = ranks(kind), AggregationFailed("first", job=7)
    future = two.submit(0, 100)
    two.loops[0].fail(failure)
    assert two.loops[0].stop(STOPPED) == []
    assert future.exception(0) is failure is two.submit(0, 100).exception(0)


@pytest.mark.parametrize("kind", LOOPS)
def test_callbacks_may_stop_only_from_another_thread(ranks: Callable[..., Ranks], kind: str) -> None:
    """The thread that waits for a call may be the one that ends it: then its callback may stop the loop."""
    two = ranks(kind)
    loop, outcomes = two.loops[0], []
    never = two.submit(0, 9, 1)

    def stop(_: "Future[Any]") -> None:
        try:
            outcomes.append([call.call.array.size for call in loop.stop(STOPPED)])
        except SwitchaggError as refusal:
            outcomes.append(str(refusal))

    future = two.submit(0, 100)
    future.add_done_callback(stop)
    timer = threading.Timer(0.02, two.submit, (1, 100))
    timer.start()
    assert future.result(LIVENESS_S).array[0] == 6
    timer.join()
    if outcomes == [[9]]:
        assert kind == "native"
    else:
        assert outcomes == ["job 7, rank 0: the worker loop can't be stopped in its own thread"]
        assert [call.call.array.size for call in loop.stop(STOPPED)] == [9]
    assert not never.done()


class Gate:
    """A callback that keeps its thread until the gate is opened."""

    def __init__(self, future: "Future[Any]") -> None:
        self._reached, self._open = threading.Event(), threading.Event()
        future.add_done_callback(self._pass)

    def _pass(self, _: "Future[Any]") -> None:
        self._reached.set()
        assert self._open.wait(LIVENESS_S)

    def wait(self) -> None:
        assert self._reached.wait(LIVENESS_S)

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("kind", ["native", "background"])
def test_a_call_whose_event_nobody_has_seen_is_resolved(
    ranks: Callable[..., Ranks], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of two calls wait for the thread, which takes the first event alone; then comes one more call."""
    monkeypatch.setattr(transport.worker.native_worker_loop, "EVENTS_PER_RUN", 1)
    two = ranks(kind)
    gates = [Gate(two.submit(0, 9))]
    two.submit(1, 9)
    gates[0].wait()
    late = [two.submit(0, size) for size in (4, 5)]
    gates.append(Gate(late[0]))
    for size in (4, 5):
        two.submit(1, size).result(LIVENESS_S)
    gates[0].open()
    gates[1].wait()
    queued = two.submit(0, 9000, 1)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(two.loops[0].stop, STOPPED)
        time.sleep(0.05)
        gates[1].open()
        listed = stop.result(LIVENESS_S)
    assert [future.result(0).array[0] for future in late] == [6, 6]
    assert [(call.stream, call.call.array.size, call.held.any()) for call in listed] == [(1, 9000, False)]
    assert not queued.done()


def test_a_call_that_another_waiter_has_finished_is_resolved(ranks: Callable[..., Ranks]) -> None:
    """Who waits for a call runs the loop, and leaves the event of another call to the thread, which is busy."""
    two = ranks("native")
    gate = Gate(two.submit(0, 9))
    two.submit(1, 9)
    gate.wait()
    awaited, other = two.submit(0, 5, 1), two.submit(0, 4)
    with ThreadPoolExecutor(2) as pool:
        waiter = pool.submit(awaited.result, LIVENESS_S)
        two.submit(1, 4).result(LIVENESS_S)
        time.sleep(0.05)
        assert not other.done()
        stop = pool.submit(two.loops[0].stop, STOPPED)
        gate.open()
        (call,) = stop.result(LIVENESS_S)
        assert other.result(0).array[0] == 6
        call.ended(None)
        assert waiter.result(LIVENESS_S) is call.call


@pytest.mark.parametrize("kind", LOOPS)
def test_what_nobody_took_fails_when_the_loop_is_closed(
    ranks: Callable[..., Ranks], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ranks(kind)
    gate, never = Gate(two.submit(0, 100)), two.submit(0, 9, 1)
    two.submit(1, 100)
    gate.wait()
    with monkeypatch.context() as patch:
        patch.setattr(transport.worker.worker_loop, "JOIN_S", 0.05)
        with pytest.raises(SwitchaggError, match="a callback on one of its futures must be blocking it"):
            two.loops[0].stop(STOPPED)
    gate.open()
    two.loops[0].close()
    with pytest.raises(AggregationFailed, match="closed"):
        never.result(0)
