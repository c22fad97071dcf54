"""Processes that die: a switch daemon and ranks, each a process of its own, on loopback.

Bounds on time are the promise itself (10 s for a dead rank), with leases of 4 s as shipped.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
from torch_forks import Forked

RANK = Path(__file__).with_name("training_rank.py")
DAEMON = (
    "import sys; from transport.switch.daemon import run_switch; "
    "from transport.switch.daemon_options import DaemonOptions; "
    "sys.exit(run_switch(DaemonOptions('tcp://127.0.0.1:0', ('127.0.0.1', 0), drain_s=1)))"
)
START_S = 60.0
"""For imports on a busy machine."""
PROMISE_S = 10.0
MANY = 1_000_000


class Process:
    """A child whose lines can be waited for; ended by its id."""

    def __init__(self, *arguments: str) -> None:
        self.process: subprocess.Popen[str] = Forked(
            [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: Queue[str] = Queue()
        self.errors: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.readers = [
            Thread(target=lambda stream: [self.lines.put(line) for line in stream], args=(self.process.stdout,)),
            Thread(target=lambda stream: self.errors.extend(stream), args=(self.process.stderr,)),
        ]
        for reader in self.readers:
            reader.start()

    def line(self, start: str) -> list[str]:
        """The words of the next line with this prefix."""
        end = time.monotonic() + START_S
        while True:
            try:
                words = self.lines.get(timeout=max(0.0, end - time.monotonic())).split()
            except Empty:
                pytest.fail(f"no line {start!r}; stderr: {self.errors}")
            if words[0] == start:
                return words

    def ended(self, timeout_s: float) -> tuple[int, str]:
        """Exit status and stderr."""
        status = self.process.wait(timeout_s)
        for reader in self.readers:
            reader.join(timeout_s)
        return status, "".join(self.errors)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended(START_S)


@contextmanager
def running(*processes: Process) -> Iterator[tuple[Process, ...]]:
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


@pytest.fixture
def daemon() -> Iterator[Process]:
    with running(Process("-c", DAEMON)) as (process,):
        yield process


@pytest.fixture
def control(daemon: Process) -> str:
    words = daemon.line("switchagg")
    assert words[:4] == ["switchagg", "switch", "ready:", "control"]
    return words[4]


def ranks(control: str, job: str, workers: int, calls: int) -> tuple[Process, ...]:
    return tuple(
        Process(str(RANK), control, job, str(rank), str(workers), str(calls), str(START_S)) for rank in range(workers)
    )


def test_a_killed_rank_is_named_by_all_others_and_affects_no_other_job(control: str) -> None:
    with running(*ranks(control, "doomed", 3, MANY)) as doomed, running(*ranks(control, "other", 2, MANY)) as others:
        address = [rank.line("joined") for rank in doomed][1][1]
        for rank in (*doomed, *others):
            rank.line("call")
        killed = time.monotonic()
        doomed[1].process.send_signal(signal.SIGKILL)
        for rank in (doomed[0], doomed[2]):
            status, error = rank.ended(PROMISE_S - (time.monotonic() - killed))
            assert status == 3, error
            assert f"rank 1 at {address}: no heartbeat for 4 s" in error
        for rank in others:  # still summing, exactly: each "call" line follows a check
            while not rank.lines.empty():
                rank.lines.get()
            rank.line("call")
            assert rank.process.poll() is None
        with running(*ranks(control, "doomed", 2, 20)) as following:  # the same switch serves the next job
            assert [rank.ended(START_S) for rank in following] == [(0, ""), (0, "")]


def test_a_rank_that_never_comes_is_named(control: str) -> None:
    with running(*(Process(str(RANK), control, "short", rank, "3", "1", "3") for rank in ("0", "2"))) as present:
        for rank in present:
            status, error = rank.ended(START_S)
            assert status == 3
            assert "rank 1 of 3 did not join job 'short' within 3 s; present: rank 0 at 127.0.0.1" in error


def test_a_killed_switch_is_named_by_all_ranks(daemon: Process, control: str) -> None:
    with running(*ranks(control, "orphans", 2, MANY)) as orphans:
        for rank in orphans:
            rank.line("call")
        killed = time.monotonic()
        daemon.process.send_signal(signal.SIGKILL)
        for rank in orphans:
            status, error = rank.ended(PROMISE_S - (time.monotonic() - killed))
            assert status == 3
            assert f"switch {control} has not answered for" in error


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([signal.SIGTERM], "SIGTERM; within 1 s these jobs had not left: 'told'"),
        ([signal.SIGINT], "SIGINT"),
        ([signal.SIGTERM, signal.SIGINT], "SIGINT"),
    ],
)
def test_a_stopped_switch_notifies_its_ranks(
    daemon: Process, control: str, numbers: list[signal.Signals], reason: str
) -> None:
    """Jobs that can't leave have the bound of a switch that drains (C27), and another signal ends that at once."""
    with running(*ranks(control, "told", 2, MANY)) as told:
        for rank in told:
            rank.line("call")
        for number in numbers:
            daemon.process.send_signal(number)
            time.sleep(0.5 if number != numbers[-1] else 0)
        for rank in told:
            status, error = rank.ended(PROMISE_S)
            assert status == 3
            assert error.rstrip().endswith(f"the switch was stopped by {reason}")
        assert daemon.ended(PROMISE_S)[0] == 0


def test_the_ready_file_holds_the_ready_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And systemd is told (sd_notify)."""
    ready = tmp_path / "ready"
    place = f"@switchagg-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", place)
    program = DAEMON.replace("=1))", f"=1), ready_file=__import__('pathlib').Path({str(ready)!r}))")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(place.replace("@", "\0"))
    with manager, running(Process("-c", program)) as (process,):
        line = process.line("switchagg")
        manager.settimeout(START_S)
        assert manager.recv(4096).decode().split() == ["READY=1", f"STATUS={line[0]}", *line[1:]]
        end = time.monotonic() + START_S
        while not ready.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert ready.read_text().split() == line
        assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_a_suspended_switch_fails_its_jobs_and_serves_new_ones_when_it_continues() -> None:
    """Its jobs' slots come free, and what lay in its queues meanwhile is in no sum."""
    with running(Process("-c", DAEMON.replace("drain_s=1", "slots=64, lease_s=1"))) as (switch,):
        control = switch.line("switchagg")[4]
        with running(*ranks(control, "frozen", 2, MANY)) as frozen:
            for rank in frozen:
                rank.line("call")
            switch.process.send_signal(signal.SIGSTOP)
            for rank in frozen:
                status, error = rank.ended(PROMISE_S)
                assert (status, f"switch {control} has not answered for 1." in error) == (3, True), error
        switch.process.send_signal(signal.SIGCONT)
        with running(*ranks(control, "frozen", 2, 20)) as following:  # which need all slots
            assert [rank.ended(START_S) for rank in following] == [(0, ""), (0, "")]


def test_a_suspended_rank_counts_as_dead_and_fails_when_it_continues(control: str) -> None:
    with running(*ranks(control, "frozen", 2, MANY)) as frozen:
        for rank in frozen:
            rank.line("call")
        frozen[1].process.send_signal(signal.SIGSTOP)
        status, error = frozen[0].ended(PROMISE_S)
        assert status == 3
        assert "no heartbeat" in error
        frozen[1].process.send_signal(signal.SIGCONT)
        status, error = frozen[1].ended(PROMISE_S)
        assert status == 3
        assert "this rank was taken for dead" in error
