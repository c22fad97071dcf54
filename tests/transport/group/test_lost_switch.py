"""A switch that dies or stops in mid-call costs no bit: the job goes on by a ring, and returns (L1 to L9)."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from switch_process import SwitchProcess
from waiting import SOON_S, comes

import transport.worker.path_diagnosis
from switchagg.errors import AggregationFailed, JobError
from transport.group.group_opening import open_group
from transport.group.moving_session import MovingSession
from transport.meshes.mesh_opening import bind_place

pytestmark = pytest.mark.long

WORKERS = 3


@pytest.fixture
def switches() -> Iterator[list[SwitchProcess]]:
    both = [SwitchProcess(), SwitchProcess("reference")]
    yield both
    for switch in both:
        switch.kill()


@pytest.fixture
def narrow() -> Iterator[SwitchProcess]:
    """A switch with so few slots that windows become narrower there (C23)."""
    switch = SwitchProcess(slots=16)
    yield switch
    switch.kill()


def together(switches: list[SwitchProcess], job: str, workers: int = WORKERS, **options: Any) -> list[Any]:
    """The ranks' groups."""
    places = [bind_place("tcp", "127.0.0.1") for _ in range(workers)]
    addresses = [place.address for place in places]
    control = ",".join(switch.control for switch in switches)
    how = {"switch": control, "bind": "127.0.0.1", "window_slots": 16, "streams": 2, "timeout_s": 20.0, **options}

    def join(rank: int) -> Any:
        return open_group("switch", "udp", rank, addresses, job=job, options=how, bound=places[rank])

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(join, range(workers)))


def inputs(rank: int, number: int, size: int, dtype: str) -> Any:
    values = np.random.default_rng((rank, number, size)).standard_normal(size) * 1000
    return values.astype(dtype)


CALLS: list[tuple[str, int, str, dict[str, Any]]] = [
    ("allreduce", 40_000, "float32", {}),
    ("allreduce", 700, "float32", {}),
    ("allreduce", 3_000, "int32", {}),
    ("all_gather", 10_000, "float32", {}),
    ("reduce_scatter", 20_000, "float32", {}),
    ("allreduce", 2_000, "float64", {}),
    ("broadcast", 5_000, "int64", {"root": 1}),
    ("allreduce", 900, "int32", {"op": "max"}),
    ("reduce", 5_000, "float32", {"root": 2}),
    ("allreduce", 10, "float32", {}),
    ("barrier", 0, "float32", {}),
]
SUMS = [call for call in CALLS if call[0] == "allreduce" and call[2] == "float32"]


def call_of(group: Any, number: int, calls: list[Any]) -> "Future[Any]":
    kind, size, dtype, how = calls[number % len(calls)]
    if kind == "barrier":
        done: Future[Any] = group.barrier()
        return done
    how = dict(how, key=number % len(calls)) if kind == "allreduce" and how.get("op") != "max" else how
    done = getattr(group, kind)(inputs(group.rank, number, size, dtype), **how)
    return done


class Training:
    """A job's ranks, each in a thread of its own with so many calls in flight. A rank overwrites what it has got."""

    def __init__(self, groups: list[Any], steps: int, calls: list[Any] = CALLS, pause_s: float = 0.0) -> None:
        self.groups, self.steps, self.calls = groups, steps, calls
        self.flight = min(4, len(calls))  # of a key, one call at a time
        self.results: list[list[bytes]] = [[] for _ in groups]
        self.reached = [0] * len(groups)
        self._pause_s, self._closing = pause_s, threading.Event()
        self._pool = ThreadPoolExecutor(len(groups))
        self._ends = [self._pool.submit(self._train, rank) for rank in range(len(groups))]

    def _train(self, rank: int) -> None:
        pending: list[Future[Any]] = []
        for number in range(self.steps):
            pending.append(call_of(self.groups[rank], number, self.calls))
            if len(pending) == self.flight:
                self._take(rank, pending.pop(0))
                self._closing.wait(self._pause_s)
        for future in pending:
            self._take(rank, future)

    def _take(self, rank: int, future: "Future[Any]") -> None:
        result, number = future.result(SOON_S), self.reached[rank]
        kind, _, _, how = self.calls[number % len(self.calls)]
        if kind == "reduce" and how["root"] != rank:
            result = None  # it is undefined
        self.results[rank].append(b"" if result is None else result.tobytes())
        if result is not None:
            result.view(np.uint8)[:] = 0xA5
        self.reached[rank] = number + 1

    def after(self, calls: int) -> None:
        """Wait until each rank has finished so many."""
        assert comes(lambda: min(self.reached) >= calls or any(end.done() for end in self._ends))

    def end(self) -> list[list[bytes]]:
        for end in self._ends:
            end.result(SOON_S)
        self._pool.shutdown()
        return self.results


def close(groups: list[Any]) -> None:
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(lambda group: group.close(), groups))


def undisturbed(
    switches: list[SwitchProcess], steps: int, calls: list[Any] = CALLS, workers: int = WORKERS, **options: Any
) -> Any:
    groups = together(switches[:1], "undisturbed", workers, **options)
    results = Training(groups, steps, calls).end()
    close(groups)
    return results


def differing(results: list[list[bytes]], expected: list[list[bytes]]) -> list[tuple[int, int]]:
    """(rank, call) whose bits are not as expected."""
    return [
        (rank, number)
        for rank, (own, right) in enumerate(zip(results, expected, strict=True))
        for number, (a, b) in enumerate(zip(own, right, strict=True))
        if a != b
    ]


def test_a_killed_switch_costs_no_bit_and_the_job_returns_to_it(switches: list[SwitchProcess]) -> None:
    steps = 12 * len(CALLS)
    switches[0].start()
    expected = undisturbed(switches, steps)
    groups = together(switches[:1], "survivor", fallback="ring")
    training = Training(groups, steps, pause_s=0.01)
    for death in (1, 2):
        training.after((2 * death - 1) * len(CALLS))
        switches[0].kill()
        assert comes(lambda death=death: all(group.counters["recoveries"] == death for group in groups))
        switches[0].start()
        assert comes(lambda death=death: all(group.counters["moves_to_switch"] == death for group in groups))
    assert not differing(training.end(), expected)
    assert all(group.failure is None for group in groups)
    close(groups)


CODECS = ("lanes8+ef", "topk:ratio=0.02+ef", "exact", "lanes16", "onebit+ef")


def test_codecs_keep_their_memory_and_their_random_numbers(switches: list[SwitchProcess]) -> None:
    steps = 40
    switches[0].start()
    expected = {codec: undisturbed(switches, steps, SUMS, 2, codec=codec, codec_seed=7) for codec in CODECS}
    jobs = {codec: together(switches[:1], codec, 2, fallback="ring", codec=codec, codec_seed=7) for codec in CODECS}
    trainings = {codec: Training(groups, steps, SUMS, 0.03) for codec, groups in jobs.items()}
    for training in trainings.values():
        training.after(10)
    switches[0].kill()
    for codec, training in trainings.items():
        assert not differing(training.end(), expected[codec]), codec
        assert all(group.counters["recoveries"] == 1 for group in training.groups), codec
        close(training.groups)


def test_a_standby_takes_over(switches: list[SwitchProcess]) -> None:
    steps = 8 * len(CALLS)
    for switch in switches:
        switch.start()
    expected = undisturbed(switches, steps)
    groups = together(switches, "survivor", fallback="halving_doubling", priorities=(0, 7))
    training = Training(groups, steps, pause_s=0.01)
    training.after(len(CALLS))
    switches[0].kill()
    assert comes(lambda: all(group.counters["moves_to_switch"] == 1 for group in groups))
    assert not differing(training.end(), expected)
    close(groups)


def test_narrower_windows_change_no_bit(switches: list[SwitchProcess], narrow: SwitchProcess) -> None:
    calls = [("reduce_scatter", 20_000, "float32", {}), ("allreduce", 20_000, "float32", {}), *SUMS[1:]]
    steps, options = 40 * len(calls), {"codec": "lanes8", "codec_seed": 7, "window_slots": 64, "split_calls": 1}
    wide = switches[0]
    for switch in (wide, narrow):
        switch.start()
    expected = undisturbed([wide], steps, calls, 2, **options)
    options |= {"fallback": "ring", "slots_least": 4}
    began_there = Training(together([narrow], "narrow", 2, **options), steps, calls)
    assert not differing(began_there.end(), expected)
    close(began_there.groups)
    groups = together([wide, narrow], "survivor", 2, **options)
    training = Training(groups, steps, calls, pause_s=0.03)
    training.after(len(calls))
    wide.kill()
    assert comes(lambda: all(group.counters["moves_to_switch"] == 1 for group in groups))
    assert min(training.reached) < steps - len(calls), "calls follow on the other switch"
    narrow.kill()  # recovered there, too
    assert not differing(training.end(), expected)
    close(groups)


def close_socket(monkeypatch: pytest.MonkeyPatch, link: Any) -> None:
    """As if somebody had closed a socket under its loop."""
    with open(os.devnull, "rb") as nothing:  # so that no other socket gets the number
        os.dup2(nothing.fileno(), link.fileno())
    closed = socket.socket()
    closed.close()
    monkeypatch.setattr(link, "_socket", closed)


def cut_results(_: pytest.MonkeyPatch, link: Any) -> None:
    """No result comes through any more, as where the link of the data path is down."""
    link._socket.connect(("127.0.0.1", 9))


Fault = Callable[[pytest.MonkeyPatch, Any], None]


@pytest.mark.parametrize("fault", [close_socket, cut_results])
@pytest.mark.parametrize("core", ["native", "python"])
def test_a_data_path_that_ends_is_a_lost_switch(
    monkeypatch: pytest.MonkeyPatch, switches: list[SwitchProcess], core: str, fault: Fault
) -> None:
    monkeypatch.setattr(transport.worker.path_diagnosis, "STALL_S", 2.0)
    monkeypatch.setattr(transport.worker.path_diagnosis, "STALL_CHECK_S", 1.0)
    steps = 12 * len(CALLS)
    switch = SwitchProcess(lease_s=10.0)
    switches[:] = [switch]
    switch.start()
    expected = undisturbed(switches, steps)
    groups = together(switches, "survivor", fallback="ring", core=core)
    training = Training(groups, steps, pause_s=0.01)
    training.after(len(CALLS))
    fault(monkeypatch, groups[1]._session._session._loop._link)
    assert comes(lambda: all(group.counters["recoveries"] == 1 for group in groups))
    assert comes(lambda: all(group.counters["moves_to_switch"] == 1 for group in groups))
    assert not differing(training.end(), expected)
    assert all(group.failure is None for group in groups)
    close(groups)


def test_a_switch_that_slept_is_left_and_taken_again(switches: list[SwitchProcess]) -> None:
    steps = 8 * len(CALLS)
    switches[0].start()
    expected = undisturbed(switches, steps)
    groups = together(switches[:1], "survivor", fallback="ring")
    training = Training(groups, steps, pause_s=0.01)
    training.after(len(CALLS))
    switches[0].send(signal.SIGSTOP)
    assert comes(lambda: all(group.counters["recoveries"] == 1 for group in groups))
    switches[0].send(signal.SIGCONT)
    assert comes(lambda: all(group.counters["moves_to_switch"] == 1 for group in groups))
    assert not differing(training.end(), expected)
    close(groups)


def test_a_rank_that_is_gone_as_well_is_named(switches: list[SwitchProcess]) -> None:
    switches[0].start()
    groups = together(switches[:1], "doomed", fallback="ring")
    first = [group.allreduce(np.ones(100, np.float32)) for group in groups]
    assert all((future.result(SOON_S) == WORKERS).all() for future in first)
    waiting = [group.allreduce(np.ones(100, np.float32)) for group in groups[:2]]
    switches[0].kill()
    groups[2].close()
    for future in waiting:
        failure = future.exception(SOON_S)
        assert isinstance(failure, AggregationFailed)
        assert "has not answered" in str(failure)
        assert "ring" in str(failure)
        assert "2" in str(failure)
    close(groups)


def test_a_rank_that_is_gone_before_a_job_without_a_switch_began_ends_the_others(
    switches: list[SwitchProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = MovingSession._exchange

    def fails_on_rank_1(session: MovingSession) -> Any:
        if session.rank == 1:
            raise JobError("it is gone")
        return exchange(session)

    monkeypatch.setattr(MovingSession, "_exchange", fails_on_rank_1)
    groups = together(switches, "early", fallback="ring", timeout_s=1.0)
    waiting = [group.allreduce(np.ones(100, np.float32)) for group in groups]
    for future in waiting:
        failure = future.exception(SOON_S)
        assert isinstance(failure, AggregationFailed)
        assert "it has no switch; and the ranks can't go on with ring" in str(failure)
    close(groups)


def test_a_job_that_moves_no_more_ends_with_its_switch(switches: list[SwitchProcess]) -> None:
    switches[0].start()
    groups = together(switches[:1], "settled", 2, fallback="ring")
    for group in groups:  # as after an exchange in which a rank was closing (L5)
        mover = group._session
        mover._mover.stays = True
        mover._wake.set()
        mover._thread.join(SOON_S)
    waiting = groups[0].allreduce(np.ones(100, np.float32))
    switches[0].kill()
    assert "has not answered" in str(waiting.exception(SOON_S))
    close(groups)


def test_a_job_of_a_list_begins_before_its_switch(switches: list[SwitchProcess]) -> None:
    steps = 8 * len(CALLS)
    groups = together(switches, "early", fallback="ring", timeout_s=1.0)
    training = Training(groups, steps, pause_s=0.05)
    training.after(len(CALLS))
    switches[1].start()
    assert comes(lambda: all(group.counters["moves_to_switch"] == 1 for group in groups))
    assert not differing(training.end(), undisturbed(switches[1:], steps))
    close(groups)


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (2, {}, "a job needs a fallback, as ring"),
        (1, {"fallback": "ring", "backups": 1}, "no sums that lack ranks"),
        (1, {"fallback": "ring", "secret": "on", "token": "t" * 40}, "option fallback: "),
    ],
)
def test_what_cannot_be_is_refused(
    switches: list[SwitchProcess], count: int, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobError, match=words):
        together(switches[:count], "odd", **options)


def test_a_list_names_a_switch_once(switches: list[SwitchProcess]) -> None:
    with pytest.raises(JobError, match=r"has tcp://127\.0\.0\.1:\d+ twice"):
        together([switches[0], switches[0]], "odd", fallback="ring")


@pytest.mark.parametrize("phase", ["_open_hosts", "_exchange", "_recover", "_see_to_the_way_back"])
def test_a_group_that_is_closed_while_it_recovers_leaves_nothing(
    switches: list[SwitchProcess], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Though it waits for a rank that does nothing; the third is told."""
    reached, end, does = threading.Event(), threading.Event(), getattr(MovingSession, phase)

    def waits_on_rank_1(session: MovingSession, *arguments: Any) -> Any:
        if session.rank == 1:
            reached.set()
            end.wait(SOON_S)
        return does(session, *arguments)

    monkeypatch.setattr(MovingSession, phase, waits_on_rank_1)
    switches[0].start()
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    groups = together(switches[:1], "closed", fallback="ring")
    first = [group.allreduce(np.ones(100, np.float32)) for group in groups]
    assert all((future.result(SOON_S) == WORKERS).all() for future in first)
    waiting = [groups[rank].allreduce(np.ones(100, np.float32)) for rank in (0, 2)]
    switches[0].kill()
    assert reached.wait(SOON_S)
    time.sleep(0.3)  # the others wait by then
    closing = threading.Thread(target=groups[0].close)
    closing.start()
    closing.join(SOON_S / 4)
    assert not closing.is_alive()
    assert isinstance(waiting[0].exception(0), AggregationFailed)
    assert isinstance(waiting[1].exception(SOON_S), AggregationFailed)
    end.set()
    close(groups)
    assert comes(lambda: not set(threading.enumerate()) - threads), set(threading.enumerate()) - threads
    assert comes(lambda: len(os.listdir("/proc/self/fd")) <= files)
