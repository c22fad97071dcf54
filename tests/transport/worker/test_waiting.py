"""Threads that wait for calls run the loop, one at a time; and whatever interrupts them, every call has its end."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.errors import AggregationFailed
from switchagg.native import library
from tests.transport.worker.test_worker_loop import LIVENESS_S, Bench, check_sums, job_of
from transport.worker.native_worker_loop import NativeWorkerLoop

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"native worker loop: {library.missing()}")

TRIES = 500
"""On a busy machine the background thread may be quicker than one that waits."""


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(job_of(2), loop=NativeWorkerLoop)
    yield made
    made.close()


def begin(bench: Bench, rank: int, stream: int = 0) -> Future[Any]:
    return bench.workers[rank].submit(stream, array_call(np.full(100, rank + 1, np.int32), "sum", bench.job))


class Thread(threading.Thread):
    """Runs a function, whose outcome or exception `join` gives."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function
        self._outcome: Future[Any] = Future()
        self.start()

    def run(self) -> None:
        try:
            self._outcome.set_result(self._function())
        except BaseException as error:
            self._outcome.set_exception(error)

    def end(self) -> Any:
        self.join(LIVENESS_S)
        return self._outcome.result(0)


def test_who_waits_finds_the_result_itself(bench: Bench) -> None:
    found: list[int] = []
    for _ in range(TRIES):
        mine, other = begin(bench, 0), begin(bench, 1)
        mine.add_done_callback(lambda _: found.append(threading.get_ident()))
        assert (mine.result(LIVENESS_S).array == 3).all()
        other.result(LIVENESS_S)
        if threading.get_ident() in found:
            return
    pytest.fail("it was always the background thread")


def test_two_threads_wait_for_different_calls_of_one_worker(bench: Bench) -> None:
    for turn in range(20):
        first, second = begin(bench, 0, 0), begin(bench, 0, 1)
        waiting = [Thread(lambda one=one: one.result(LIVENESS_S)) for one in (first, second)]
        order = (1, 0) if turn % 2 else (0, 1)
        for stream in order:
            theirs = begin(bench, 1, stream)
            assert (waiting[stream].end().array == 3).all()
            theirs.result(LIVENESS_S)


def test_two_threads_wait_for_one_call(bench: Bench) -> None:
    for _ in range(20):
        mine = begin(bench, 0)
        waiting = [Thread(lambda one=mine: one.result(LIVENESS_S)) for _ in range(2)]
        begin(bench, 1).result(LIVENESS_S)
        assert waiting[0].end() is waiting[1].end()


def test_a_call_that_is_made_while_another_thread_waits_is_sent(bench: Bench) -> None:
    first = begin(bench, 0, 0)
    waits = Thread(lambda: first.result(LIVENESS_S))
    for _ in range(20):
        mine, theirs = begin(bench, 0, 1), begin(bench, 1, 1)
        mine.result(LIVENESS_S)
        theirs.result(LIVENESS_S)
    begin(bench, 1, 0)
    waits.end()


def test_a_wait_that_times_out_leaves_the_call_running(bench: Bench) -> None:
    mine = begin(bench, 0)
    for timeout_s in (0, 0.02, 0.12):
        with pytest.raises(TimeoutError):
            mine.result(timeout_s)
    begin(bench, 1).result(LIVENESS_S)
    assert (mine.result(LIVENESS_S).array == 3).all()


def test_ctrl_c_reaches_who_waits_and_the_call_goes_on(bench: Bench) -> None:
    mine = begin(bench, 0)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            with pytest.raises(KeyboardInterrupt):
                mine.result(LIVENESS_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    begin(bench, 1).result(LIVENESS_S)
    assert (mine.result(LIVENESS_S).array == 3).all()
    check_sums(bench, calls=4)


def test_what_ctrl_c_interrupts_between_a_result_and_its_callbacks_is_done_by_the_loop(bench: Bench) -> None:
    """A callback that raises stands for a signal there."""
    interrupted = False
    for _ in range(TRIES):
        mine, called = begin(bench, 0), threading.Event()
        raising = [True, threading.get_ident()]

        def interrupt(_: object, raising: list[Any] = raising) -> None:
            if raising[0] and threading.get_ident() == raising[1]:
                raising[0] = False
                raise KeyboardInterrupt

        mine.add_done_callback(interrupt)
        mine.add_done_callback(lambda _, called=called: called.set())
        theirs = begin(bench, 1)
        try:
            mine.result(LIVENESS_S)
        except KeyboardInterrupt:
            interrupted = True
        assert called.wait(LIVENESS_S)
        theirs.result(LIVENESS_S)
        if interrupted:
            break
    assert interrupted, "it was always the background thread that found the result"
    check_sums(bench, calls=4)


@pytest.mark.parametrize("end", ["close", "fail"])
def test_who_waits_learns_of_the_end(bench: Bench, end: str) -> None:
    calls = [begin(bench, 0, stream) for stream in (0, 1)]
    waiting = [Thread(lambda one=one: one.result(LIVENESS_S)) for one in calls]
    if end == "close":
        bench.workers[0].close()
    else:
        bench.workers[0].fail(AggregationFailed("told so", job=7))
    for one in waiting:
        with pytest.raises(AggregationFailed, match="closed" if end == "close" else "told so"):
            one.end()


def test_a_callback_in_the_thread_that_waits_may_close_the_loop(bench: Bench) -> None:
    mine = begin(bench, 0)
    mine.add_done_callback(lambda _: bench.workers[0].close())
    begin(bench, 1)
    assert (mine.result(LIVENESS_S).array == 3).all()
    assert isinstance(bench.workers[0].failure, AggregationFailed)


def test_a_forked_child_takes_no_packets(bench: Bench) -> None:
    mine = begin(bench, 0)
    child = os.fork()
    if not child:
        try:
            mine.result(0.2)
        except TimeoutError:
            os._exit(3)
        os._exit(1)
    begin(bench, 1).result(LIVENESS_S)
    assert (mine.result(LIVENESS_S).array == 3).all()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
