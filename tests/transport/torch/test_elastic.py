"""Elastic groups: who is in the next generation, and a training that a killed worker costs a step."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch_forks import Forked
from waiting import until

from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.elastic import host_store, membership_rounds
from transport.torch.elastic.membership_rounds import NEW, GroupGeneration, MembershipRounds
from transport.torch.rendezvous import SwitchOptions

EXAMPLE = Path(__file__).parents[3] / "examples" / "elastic_ddp.py"
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def beats_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_rounds, "BEAT_S", 0.02)
    monkeypatch.setattr(membership_rounds, "SILENT_S", 0.3)
    monkeypatch.setattr(membership_rounds, "DEAD_S", 0.6)


class Processes:
    """Processes as objects of this one, on one store."""

    def __init__(self, least: int = 1) -> None:
        self.store, self._least = dist.HashStore(), least
        self._pool = ThreadPoolExecutor(8)
        self.opened: list[MembershipRounds] = []

    def new(self) -> MembershipRounds:
        self.opened.append(MembershipRounds(self.store, self._least))
        return self.opened[-1]

    def later(self, act: Any, *arguments: Any) -> Any:
        return self._pool.submit(act, *arguments)

    def begin(self, workers: int) -> list[MembershipRounds]:
        """The first generation."""
        rounds = [self.new() for _ in range(workers)]
        waits = [self.later(member.begin, rank, workers, LIMIT_S) for rank, member in enumerate(rounds)]
        assert all(wait.result() == GroupGeneration(0, identities(*rounds), [NEW] * workers) for wait in waits)
        return rounds

    def close(self) -> None:
        for rounds in self.opened:
            rounds.close()
        self._pool.shutdown()


def identities(*rounds: MembershipRounds) -> list[str]:
    return [member.identity for member in rounds]


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


def test_who_is_left_goes_on_and_who_is_ahead_comes_first(processes: Processes) -> None:
    a, b, c = processes.begin(3)
    b.close()  # it dies
    waits = [processes.later(a.next, 7, LIMIT_S), processes.later(c.next, 8, LIMIT_S)]
    generation = GroupGeneration(1, identities(c, a), [8, 7])
    assert [wait.result() for wait in waits] == [generation] * 2
    assert not generation.is_even
    waits = [processes.later(member.next, 8, LIMIT_S) for member in (a, c)]
    assert [wait.result() for wait in waits] == [GroupGeneration(2, identities(c, a), [8, 8])] * 2
    assert waits[0].result().is_even


def test_nobody_who_is_alive_is_left_behind(processes: Processes) -> None:
    a, b = processes.begin(2)
    wait = processes.later(a.next, 1, LIMIT_S)
    time.sleep(1.0)  # longer than a death takes to be seen
    assert not wait.done()
    assert b.next(1, LIMIT_S) == wait.result() == GroupGeneration(1, identities(a, b), [1, 1])


def test_a_new_process_joins_at_the_step_that_rank_0_names(processes: Processes) -> None:
    a, b = processes.begin(2)
    c = processes.new()
    joined = processes.later(c.begin, 0, 2, LIMIT_S)
    until(a.has_joiners)
    assert [a.pauses(4), b.pauses(4), joined.done()] == [False] * 3
    a.pause_at(5)
    assert [b.pauses(step) for step in (4, 5, 6)] == [False, True, True]
    waits = [processes.later(member.next, 5, LIMIT_S) for member in (a, b)]
    generation = GroupGeneration(1, identities(a, b, c), [5, 5, NEW])
    assert [wait.result() for wait in (*waits, joined)] == [generation] * 3
    assert [a.has_joiners(), a.pauses(9)] == [False] * 2


def test_nobody_waits_for_a_process_that_dies_as_it_joins(processes: Processes) -> None:
    a, b = processes.begin(2)
    c = processes.new()
    joined = processes.later(c.begin, 2, 3, LIMIT_S)
    while not (a.has_joiners() and b.has_joiners()):
        time.sleep(0.01)
    waits = [processes.later(member.next, 4, LIMIT_S) for member in (a, b)]
    assert {wait.result().members[2] for wait in waits} == {joined.result().members[2]} == {c.identity}
    deaths = threading.Event()
    a.on_death = deaths.set
    c.close()  # it dies
    assert deaths.wait(LIMIT_S)
    for wait in [processes.later(member.meet, 1000.0) for member in (a, b)]:
        with pytest.raises(dist.DistBackendError, match="rank 2 of 3 did not come"):
            wait.result()
    waits = [processes.later(member.next, 4, LIMIT_S) for member in (a, b)]
    assert [wait.result() for wait in waits] == [GroupGeneration(2, identities(a, b), [4, 4])] * 2
    for wait in [processes.later(member.meet, LIMIT_S) for member in (a, b)]:
        wait.result()


def test_a_process_that_was_taken_for_dead_joins_anew(processes: Processes) -> None:
    a, b = processes.begin(2)
    b._closed.set()  # it stands still
    b._thread.join()
    assert a.next(3, LIMIT_S).members == identities(a)
    b._closed.clear()
    b._thread = threading.Thread(target=b._run, daemon=True)  # and goes on
    b._thread.start()
    late = processes.later(b.next, 2, LIMIT_S)
    until(a.has_joiners)
    assert a.next(4, LIMIT_S) == late.result() == GroupGeneration(2, identities(a, b), [4, NEW])


def test_a_process_that_has_no_state_yet_goes_on_where_all_others_of_its_generation_are_dead(
    processes: Processes,
) -> None:
    """They died before it got their state: nobody else can decide."""
    a, b = processes.begin(2)
    c = processes.new()
    joined = processes.later(c.begin, 0, 2, LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while not (a.has_joiners() and b.has_joiners()) and time.monotonic() < deadline:
        time.sleep(0.01)
    waits = [processes.later(member.next, 5, LIMIT_S) for member in (a, b)]
    assert [wait.result() for wait in (*waits, joined)] == [GroupGeneration(1, identities(a, b, c), [5, 5, NEW])] * 3
    for member in (a, b):
        member.close()
    assert c.next(NEW, LIMIT_S) == GroupGeneration(2, identities(c), [NEW])


def test_new_processes_begin_anew_where_all_others_are_dead(processes: Processes) -> None:
    for member in processes.begin(2):
        member.close()
    a = processes.new()
    assert a.begin(1, 2, LIMIT_S) == GroupGeneration(1, identities(a), [NEW])


def test_too_few_ranks_wait_and_an_end_is_said() -> None:
    processes = Processes(least=2)
    try:
        a, b = processes.begin(2)
        b.close()
        with pytest.raises(dist.DistBackendError, match="no generation 1 of at least 2 ranks began within 1 s"):
            a.next(1, 1.0)
        a.end_job()
        with pytest.raises(dist.DistBackendError, match="the job has ended"):
            processes.new().begin(0, 2, LIMIT_S)
    finally:
        processes.close()


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"backups": 1}, "SWITCHAGG_ELASTIC=1: not with partial sums: leave SWITCHAGG_BACKUPS out, or elastic"),
        ({"close_after_ns": 5}, "leave SWITCHAGG_CLOSE_AFTER_NS out"),
        ({"secret": "on"}, "not with secret sums: leave SWITCHAGG_SECRET out"),
    ],
)
def test_what_can_t_be_elastic_is_refused_in_a_line(odd: dict[str, Any], words: str) -> None:
    with pytest.raises(dist.DistBackendError, match=words):
        SwitchOptions(elastic=1, **odd).require_elastic()


@pytest.fixture
def switch() -> Iterator[SwitchDaemon]:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=2048, lease_s=3.0))
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.mark.parametrize(("how", "fallback"), [("killed", ""), ("stopped", ""), ("stopped", "ring")])
def test_a_worker_that_is_lost_costs_a_step_and_comes_back(switch: SwitchDaemon, how: str, fallback: str) -> None:
    store, variables = host_store()
    environment = {**os.environ, **variables, "SWITCHAGG_ELASTIC": "1", "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
    environment |= {"SWITCHAGG_SWITCH": switch.control_endpoint, "SWITCHAGG_METHOD": "switch"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "SWITCHAGG_FALLBACK": fallback}
    reader, writer = os.pipe()

    def start(rank: int) -> Any:
        command = [sys.executable, str(EXAMPLE), "--work", "--steps", "400"]
        return Forked(command, env={**environment, "RANK": str(rank)}, stdout=writer, stderr=subprocess.STDOUT)

    workers = [start(rank) for rank in range(3)]
    lines: list[str] = []
    try:
        with open(reader) as output:

            def read_until(words: str) -> None:
                while not (lines and words in lines[-1]):
                    lines.append(output.readline())
                    assert lines[-1], lines

            read_until(": 3 workers")
            if how == "killed":
                workers[0].kill()  # the rank that all get their state from
                workers[0].wait()
                read_until(": 2 workers")
                workers[0] = start(0)
            else:
                workers[0].send_signal(signal.SIGSTOP)
                read_until(": 2 workers")
                workers[0].send_signal(signal.SIGCONT)
            os.close(writer)  # what the workers alone have open now ends with them
            read_until(": 3 workers")
            ends = output.read()
        assert [worker.wait(30) for worker in workers] == [0] * 3
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    sums = re.findall(r"of 3: step 400, sum (\d+\.\d{12})", ends)  # two ranks may write into one line
    assert len(sums) == 3, ends
    assert len(set(sums)) == 1, ends
    del store
