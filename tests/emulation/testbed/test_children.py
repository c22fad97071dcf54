"""Child processes: typed orders and reports, and one line for whatever ends one."""

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from emulation.testbed import children
from emulation.testbed.children import Child, ChildCommand, ChildFailed, ChildReport, CommandFailed, Ready, gather
from tests.shared.starved import STARVED, busy

PRELUDE = """
import os, signal, sys, time
import msgspec
from emulation.testbed.children import Done, ChildCommand, ChildReport, serve

class Place(msgspec.Struct):
    rank: int

class Add(ChildCommand):
    number: int

class Sum(ChildReport):
    value: int
"""
ADDS = """
def begin(place):
    def carry_out(order):
        if order.number < 0:
            raise ValueError("a number\\nbelow zero")
        print("a library talks", flush=True)
        return Sum(place.rank + order.number)
    return carry_out
serve(Place, Add, begin)
"""


class Add(ChildCommand):
    number: int


class Sum(ChildReport):
    value: int


Start = Callable[..., list[Child[Any]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a child per program, with its rank as its place."""
    started: list[Child[Any]] = []

    def begin(*programs: str) -> list[Child[Any]]:
        for rank, program in enumerate(programs):
            log = tempfile.TemporaryFile()  # noqa: SIM115
            command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), msgspec.json.encode({"rank": rank})]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            started.append(Child(f"rank {rank}", process, Sum | Ready | CommandFailed, log))
        return started

    yield begin
    children.close(started)
    children.close(started)  # idempotent
    assert all(child.process.returncode is not None for child in started)


def ask(started: list[Child[Any]], number: int, timeout_s: float = 30.0) -> list[Any]:
    for child in started:
        child.send(Add(number))
    return gather(started, timeout_s)


def test_commands_are_answered_in_the_order_of_the_children(start: Start) -> None:
    started = start(ADDS, ADDS)
    assert gather(started, 60.0) == [Ready(), Ready()]
    assert ask(started, 5) == [Sum(5), Sum(6)]
    assert ask(started, 7) == [Sum(7), Sum(8)]


def test_a_failed_command_is_a_one_line_error_in_the_parent(start: Start) -> None:
    started = start(ADDS)
    gather(started, 60.0)
    with pytest.raises(ChildFailed, match=r"^rank 0: a number below zero$"):
        ask(started, -1)
    assert started[0].process.wait(10) == 1


def test_a_killed_child_is_named_before_those_that_only_noticed(start: Start) -> None:
    started = start(ADDS, "os.kill(os.getpid(), signal.SIGKILL)")
    started[1].process.wait(30)
    assert started[0].read() == [Ready()]
    started[0].send(Add(-1))
    started[0].process.wait(30)
    with pytest.raises(ChildFailed, match=r"^rank 1 was killed by SIGKILL$"):
        gather(started, 60.0)


def test_a_killed_child_is_named_though_its_end_is_known_late(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a rank on another machine: its peer's report comes before the word of its node."""
    started = start(ADDS, "os.kill(os.getpid(), signal.SIGKILL)")
    status = started[1].process.wait(30)
    polls = iter([None, None])
    monkeypatch.setattr(started[1].process, "poll", lambda: next(polls, status))
    assert started[0].read() == [Ready()]
    started[0].send(Add(-1))
    started[0].process.wait(30)
    with pytest.raises(ChildFailed, match=r"^rank 1 was killed by SIGKILL$"):
        gather(started, 60.0)


def test_the_last_stderr_line_of_a_child_that_exits_is_quoted(start: Start) -> None:
    with pytest.raises(ChildFailed, match=r"^rank 0 ended with status 7: MemoryError: too much$"):
        gather(start('sys.stderr.write("a warning\\nMemoryError: too much\\n")\nsys.exit(7)'), 60.0)


def test_a_wait_times_out_and_names_children_without_a_report(start: Start) -> None:
    started = start(ADDS, "time.sleep(600)")
    assert gather(started[:1], 60.0) == [Ready()]
    started[0].send(Add(1))
    with pytest.raises(ChildFailed, match=r"^no answer from rank 1 within 1 s$"):
        gather(started, 1.0)


def test_a_starved_child_is_waited_for(start: Start) -> None:
    with busy():
        assert gather(start(STARVED + ADDS), 1.0) == [Ready()]


def test_the_check_runs_while_waiting_for_children(start: Start) -> None:
    def dead() -> None:
        raise RuntimeError("the switch ended")

    with pytest.raises(RuntimeError, match="the switch ended"):
        gather(start("time.sleep(600)"), 60.0, dead)


def test_a_report_of_another_kind_is_refused(start: Start) -> None:
    with pytest.raises(ChildFailed, match=r"^rank 0: its report can't be understood: .*'sam'"):
        gather(start("""print('{"event":"sam"}', flush=True)\ntime.sleep(600)"""), 60.0)
