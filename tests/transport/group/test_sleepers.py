"""Ranks that are stopped (SIGSTOP) for longer than a lease (L16): with a fallback the others wait, and no bit changes;
a rank that is killed is named as soon as ever."""

import signal
import time
from collections.abc import Iterator

import pytest
from switch_process import LEASE_S, SwitchProcess
from switch_rank import RankProcesses
from waiting import SOON_S, comes

pytestmark = pytest.mark.long

WORKERS = 3
ASLEEP_S = 4.0
"""Longer than a lease and all that ranks waited for a dead one."""


@pytest.fixture
def switch() -> Iterator[SwitchProcess]:
    process = SwitchProcess()
    process.start()
    yield process
    process.kill()


@pytest.fixture
def jobs() -> Iterator[list[RankProcesses]]:
    begun: list[RankProcesses] = []
    yield begun
    for job in begun:
        job.close()


def begun(jobs: list[RankProcesses], switch: str, **settings: object) -> RankProcesses:
    """A job in the middle of its work."""
    job = RankProcesses(WORKERS, switch, fallback="ring", **settings)
    jobs.append(job)
    assert comes(lambda: min(map(len, job.sums)) > 20), job.said
    return job


def ends_well(job: RankProcesses) -> None:
    steps = job.end()
    assert [process.wait(SOON_S) for process in job.processes] == [0] * WORKERS, job.said
    assert comes(lambda: job.has_said("ends"))
    assert [len(sums) for sums in job.sums] == [steps] * WORKERS
    assert not job.wrong()


@pytest.mark.parametrize("sleeper", [0, 2])
def test_a_rank_that_slept_is_waited_for(switch: SwitchProcess, jobs: list[RankProcesses], sleeper: int) -> None:
    job = begun(jobs, switch.control)
    job.send(sleeper, signal.SIGSTOP)
    time.sleep(ASLEEP_S)
    assert not any("failed" in line for lines in job.said for line in lines), job.said
    job.send(sleeper, signal.SIGCONT)
    assert comes(lambda: job.has_said("moves_to_switch 1")), job.said
    job.send(sleeper, signal.SIGSTOP)  # now the ranks have met
    time.sleep(ASLEEP_S)
    job.send(sleeper, signal.SIGCONT)
    ends_well(job)
    assert job.has_said("recoveries 2"), job.said


def test_a_switch_may_die_while_a_rank_sleeps(switch: SwitchProcess, jobs: list[RankProcesses]) -> None:
    job = begun(jobs, switch.control)
    job.send(1, signal.SIGSTOP)
    time.sleep(1.5 * LEASE_S)
    switch.kill()
    time.sleep(ASLEEP_S)
    job.send(1, signal.SIGCONT)
    assert comes(lambda: job.has_said("recoveries 1")), job.said
    switch.start()
    assert comes(lambda: job.has_said("moves_to_switch 1")), job.said
    ends_well(job)


def test_a_rank_may_sleep_while_hosts_carry_the_calls(switch: SwitchProcess, jobs: list[RankProcesses]) -> None:
    job = begun(jobs, switch.control)
    switch.kill()
    assert comes(lambda: job.has_said("recoveries 1")), job.said
    job.send(2, signal.SIGSTOP)
    switch.start()  # all ranks but the sleeper come to it
    time.sleep(ASLEEP_S)
    job.send(2, signal.SIGCONT)
    assert comes(lambda: job.has_said("moves_to_switch 1")), job.said
    ends_well(job)


@pytest.mark.parametrize(("killed", "asleep"), [(0, True), (2, True), (2, False)])
def test_a_killed_rank_is_named(switch: SwitchProcess, jobs: list[RankProcesses], killed: int, asleep: bool) -> None:
    """Also where it was stopped before, and the others wait for it."""
    job = begun(jobs, switch.control)
    if asleep:
        job.send(killed, signal.SIGSTOP)
        time.sleep(ASLEEP_S)
    job.send(killed, signal.SIGKILL)
    left = [rank for rank in range(WORKERS) if rank != killed]
    assert [job.processes[rank].wait(SOON_S) for rank in left] == [1, 1], job.said
    for rank in left:
        assert comes(lambda rank=rank: any(f"member {killed}" in line for line in job.said[rank])), job.said
    assert not job.wrong()


def test_a_sleeper_is_waited_for_no_longer_than_calls(switch: SwitchProcess, jobs: list[RankProcesses]) -> None:
    job = begun(jobs, switch.control, call_timeout_s=4.0)
    job.send(1, signal.SIGSTOP)
    assert [job.processes[rank].wait(SOON_S) for rank in (0, 2)] == [1, 1], job.said
    for rank in (0, 2):
        assert comes(lambda rank=rank: any("was it stopped" in line for line in job.said[rank])), job.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_is_ended_while_it_waits_ends_at_once(
    switch: SwitchProcess, jobs: list[RankProcesses], number: signal.Signals
) -> None:
    """By Ctrl-C or without a word; the third rank names it, and the sleeper when it wakes."""
    job = begun(jobs, switch.control)
    job.send(1, signal.SIGSTOP)
    time.sleep(ASLEEP_S)
    job.send(0, number)
    assert job.processes[0].wait(SOON_S / 4) in (1, -number), job.said
    assert job.processes[2].wait(SOON_S) == 1, job.said
    job.send(1, signal.SIGCONT)
    assert job.processes[1].wait(SOON_S) == 1, job.said
