"""The group of trainers: progress, and one line for whatever goes wrong, soon."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from emulation.scenario.errors import RunFailed
from emulation.testbed import children
from emulation.testbed.mininet.trainer_processes import TrainerGroup, TrainerProcess
from emulation.testbed.trainers.trainer_messages import IterationReport, TrainingFinished
from tests.shared.starved import STARVED, busy

ITERATION = IterationReport(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0.5, 0, [])
FINISHED = TrainingFinished(42, 168, "ab", 0, {}, None, {}, [])
PRELUDE = f"""
import json, os, signal, sys, time
def say(line): print(line, flush=True)
def failed(message): say(json.dumps({{"event": "failed", "message": message}}, separators=(",", ":")))
iteration = {msgspec.json.encode(ITERATION).decode()!r}
finished = {msgspec.json.encode(FINISHED).decode()!r}
"""
WELL = 'print("a library talks")\nsay(iteration)\nprint("[]")\nsay(iteration)\nsay(finished)'
WAITS = "time.sleep(60)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[TrainerProcess]]]:
    """Starts one Python process per program, as ranks 0 …; whatever still runs is killed in the end."""
    started: list[TrainerProcess] = []

    def begin(*programs: str) -> list[TrainerProcess]:
        for rank, program in enumerate(programs):
            log_path = tmp_path / f"rank-{rank}.log"
            log = log_path.open("w+b")
            process = subprocess.Popen(
                [sys.executable, "-c", PRELUDE + textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=log
            )
            started.append(TrainerProcess(rank, process, log))
        return started

    yield begin
    children.close([member.child for member in started])


def follow(members: list[TrainerProcess], stall_s: float = 30.0, limit_s: float = 60.0) -> list[int]:
    return list(TrainerGroup("switch", members, stall_s=stall_s, limit_s=limit_s).follow())


def test_progress_is_that_of_the_slowest_rank_and_all_reports_are_kept(
    start: Callable[..., list[TrainerProcess]],
) -> None:
    members = start(WELL, WELL)
    assert follow(members)[-1] == 2
    assert [report for member in members for report in member.named(TrainingFinished)] == [FINISHED, FINISHED]
    assert members[0].named(IterationReport) == [ITERATION, ITERATION]


def test_lines_may_arrive_in_pieces() -> None:
    member = TrainerProcess(0, None, None)  # type: ignore[arg-type]
    line = msgspec.json.encode(ITERATION) + b"\n"
    for byte in line * 2:
        for report in member.child.take(bytes([byte])):
            member.add(report)
    assert (member.iterations, len(member.reports)) == (2, 2)


def test_a_killed_rank_is_named_before_those_that_only_noticed(start: Callable[..., list[TrainerProcess]]) -> None:
    complains = 'failed("rank 1 is gone")\nsys.exit(1)'
    killed = "say(iteration)\nos.kill(os.getpid(), signal.SIGKILL)"
    members = start(WAITS, killed, WAITS)
    with pytest.raises(RunFailed, match=r"^switch: rank 1 was killed by SIGKILL at iteration 1$"):
        follow(members)
    members[1].child.process.wait()
    late = start(complains)
    late[-1].child.process.wait()
    with pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL"):
        follow(late)


def test_a_rank_that_fails_gives_the_reason(start: Callable[..., list[TrainerProcess]]) -> None:
    members = start(WAITS, 'failed("no switch at tcp://10.0.0.254:5555")\nsys.exit(1)')
    with pytest.raises(RunFailed, match=r"^switch: rank 1 failed at its start: no switch at tcp://10\.0\.0\.254:5555$"):
        follow(members)


def test_a_rank_that_dies_without_a_report_is_quoted_from_its_log(start: Callable[..., list[TrainerProcess]]) -> None:
    members = start('sys.stderr.write("a warning\\nMemoryError: too much\\n")\nsys.exit(7)', WAITS)
    with pytest.raises(RunFailed, match=r"exit status 7: MemoryError: too much \(more in .*rank-0\.log\)"):
        follow(members)


def test_ending_early_is_a_failure_even_with_status_0(start: Callable[..., list[TrainerProcess]]) -> None:
    with pytest.raises(RunFailed, match=r"rank 0 failed at iteration 1: exit status 0: it wrote nothing"):
        follow(start("say(iteration)"))


def test_failing_after_the_end_is_a_failure(start: Callable[..., list[TrainerProcess]]) -> None:
    with pytest.raises(RunFailed, match=r"rank 0 finished and then failed: .*exit status 3"):
        follow(start("say(finished)\nsys.exit(3)"))


def test_a_run_without_reports_times_out(start: Callable[..., list[TrainerProcess]]) -> None:
    with pytest.raises(RunFailed, match=r"no rank said anything for 1 s; rank 0 at its start"):
        follow(start(WAITS), stall_s=1.0)


def test_starved_ranks_are_waited_for(start: Callable[..., list[TrainerProcess]]) -> None:
    sleeps = "time.sleep(3)\nsay(iteration)\nsay(iteration)\nsay(finished)"
    with busy():
        assert follow(start(f"{STARVED}{WELL}", sleeps), stall_s=1.0, limit_s=2.0)[-1] == 2


def test_the_whole_run_has_a_time_limit(start: Callable[..., list[TrainerProcess]]) -> None:
    chatters = "while True:\n    say(iteration)\n    time.sleep(0.1)"
    with pytest.raises(RunFailed, match=r"not done after 2 s.*; rank 0 at iteration \d+"):
        follow(start(chatters), limit_s=2.0)


def test_the_check_runs_while_waiting_for_ranks(start: Callable[..., list[TrainerProcess]]) -> None:
    def dead() -> None:
        raise RunFailed("the data plane ended")

    with pytest.raises(RunFailed, match="the data plane ended"):
        list(TrainerGroup("switch", start(WAITS), stall_s=30, limit_s=60, alive=dead).follow())


def test_an_invalid_report_is_a_failure(start: Callable[..., list[TrainerProcess]]) -> None:
    with pytest.raises(RunFailed, match=r"^rank 0: its report can't be understood: .*`iteration`"):
        follow(start("""say('{"event":"iteration"}')"""))
