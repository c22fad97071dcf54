"""Jobs that leave a switch for a more urgent one, go on by a ring, and return: the same bits as undisturbed."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from waiting import comes

from switchagg.errors import AggregationFailed, JobError
from transport.control.control_client import query_status
from transport.group.group_opening import open_group
from transport.meshes.mesh_opening import bind_place
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

SOON_S = 60.0
WORKERS = 2
ELEMENTS = 5_000


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=128, lease_s=1.5)) as running:
        yield running


def together(daemon: SwitchDaemon, job: str, **options: Any) -> list[Any]:
    """The ranks' groups of a job that takes the whole switch."""
    places = [bind_place("tcp", "127.0.0.1") for _ in range(WORKERS)]
    addresses = [place.address for place in places]

    def join(rank: int) -> Any:
        told = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64, **options}
        return open_group("switch", "udp", rank, addresses, job=job, options=told, bound=places[rank])

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(join, range(WORKERS)))


def inputs(rank: int, number: int) -> Any:
    return np.random.default_rng((rank, number)).standard_normal(ELEMENTS).astype(np.float32)


class Training:
    """A job's ranks, each in a thread of its own, one call after the other but for two in flight, until told to end."""

    def __init__(self, groups: list[Any]) -> None:
        self.groups = groups
        self.steps = 1 << 30
        self.sums: list[list[Any]] = [[] for _ in groups]
        self._pool = ThreadPoolExecutor(len(groups))
        self._ends = [self._pool.submit(self._train, rank) for rank in range(len(groups))]

    def _train(self, rank: int) -> None:
        pending: list[Any] = []
        number = 0
        while number < self.steps:
            pending.append(self.groups[rank].allreduce(inputs(rank, number)))
            number += 1
            if len(pending) == 2:
                self.sums[rank].append(pending.pop(0).result(SOON_S))
            time.sleep(0.004 * (rank + 1))
        self.sums[rank] += [one.result(SOON_S) for one in pending]

    def end(self) -> None:
        self.steps = max(map(len, self.sums)) + 100  # more than any rank has begun
        for end in self._ends:
            end.result(SOON_S)
        self._pool.shutdown()

    def moved(self, to: str, times: int = 1) -> bool:
        return all(group.counters[f"moves_to_{to}"] >= times for group in self.groups)


def close(groups: list[Any]) -> None:
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(lambda group: group.close(), groups))


def undisturbed(daemon: SwitchDaemon, steps: int) -> list[Any]:
    """The sums of a job that stays on the switch."""
    groups = together(daemon, "undisturbed")
    futures = [[group.allreduce(inputs(rank, number)) for number in range(steps)] for rank, group in enumerate(groups)]
    sums = [future.result(SOON_S) for future in futures[0]]
    close(groups)
    return sums


def test_a_job_leaves_for_a_more_urgent_one_and_returns_with_the_same_bits(daemon: SwitchDaemon) -> None:
    training = Training(together(daemon, "patient", fallback="ring"))
    assert comes(lambda: len(training.sums[0]) > 3)
    urgent = together(daemon, "urgent", job_priority=0)
    assert training.moved("hosts")
    sums = [group.allreduce(np.full(1000, rank + 1, np.int32)) for rank, group in enumerate(urgent)]
    assert all((one.result(SOON_S) == 3).all() for one in sums)
    away = len(training.sums[0])
    assert comes(lambda: len(training.sums[0]) > away + 3)
    close(urgent)
    assert comes(lambda: training.moved("switch"))
    back = len(training.sums[0])
    assert comes(lambda: len(training.sums[0]) > back + 3)
    training.end()
    close(training.groups)
    expected = undisturbed(daemon, len(training.sums[0]))
    for own in training.sums:
        assert [one.tobytes() for one in own] == [one.tobytes() for one in expected]


def test_a_job_leaves_a_switch_that_drains_and_returns_to_the_next_with_the_same_bits(daemon: SwitchDaemon) -> None:
    training = Training(together(daemon, "patient", fallback="ring"))
    assert comes(lambda: len(training.sums[0]) > 3)
    daemon.drain("an upgrade")
    assert daemon.wait(SOON_S)
    assert daemon.failure is None
    away = len(training.sums[0])
    with SwitchDaemon(replace(daemon.options, bind_control=daemon.control_endpoint)) as upgraded:
        assert comes(lambda: training.moved("switch"))
        back = len(training.sums[0])
        assert comes(lambda: len(training.sums[0]) > back + 3)
        assert back > away  # it went on meanwhile
        training.end()
        close(training.groups)
        expected = undisturbed(upgraded, len(training.sums[0]))
    for own in training.sums:
        assert [one.tobytes() for one in own] == [one.tobytes() for one in expected]


def slots_of(daemon: SwitchDaemon) -> dict[str, int]:
    """How many each running job has."""
    return {job.name: job.terms.requested_slots for job in query_status(daemon.control_endpoint).jobs}


@pytest.mark.filterwarnings("ignore:.*windows have (32|96) slots in all, not 128")
def test_slots_are_divided_anew_while_jobs_run_with_the_same_bits(daemon: SwitchDaemon) -> None:
    how = {"fallback": "ring", "slots_least": 16}
    trainings = {"first": Training(together(daemon, "first", **how))}
    assert slots_of(daemon) == {"first": 128}
    trainings["second"] = Training(together(daemon, "second", weight=3, **how))  # begins with the ring, at once
    assert comes(lambda: slots_of(daemon) == {"first": 32, "second": 96})
    shown = {job.name: job for job in query_status(daemon.control_endpoint).jobs}["second"]
    assert (shown.requested_slots, shown.terms.slots_least, shown.terms.weight) == (128, 16, 3)
    assert comes(lambda: trainings["first"].moved("switch"))
    both = [len(training.sums[0]) for training in trainings.values()]
    assert comes(lambda: all(len(one.sums[0]) > had + 3 for one, had in zip(trainings.values(), both, strict=True)))
    trainings["second"].end()
    close(trainings["second"].groups)
    assert comes(lambda: trainings["first"].moved("switch", 2) and slots_of(daemon) == {"first": 128})
    back = len(trainings["first"].sums[0])
    assert comes(lambda: len(trainings["first"].sums[0]) > back + 3)
    trainings["first"].end()
    close(trainings["first"].groups)
    expected = undisturbed(daemon, max(len(training.sums[0]) for training in trainings.values()))
    for own in (sums for training in trainings.values() for sums in training.sums):
        assert [one.tobytes() for one in own] == [one.tobytes() for one in expected[: len(own)]]


def test_a_job_begins_without_the_switch_while_that_is_full(daemon: SwitchDaemon) -> None:
    first = together(daemon, "first")
    training = Training(together(daemon, "second", fallback="ring"))
    assert comes(lambda: len(training.sums[0]) > 3)
    assert not training.moved("switch")
    close(first)
    assert comes(lambda: training.moved("switch"))
    training.end()
    close(training.groups)
    expected = undisturbed(daemon, len(training.sums[0]))
    for own in training.sums:
        assert [one.tobytes() for one in own] == [one.tobytes() for one in expected]


def test_who_cannot_leave_is_not_asked(daemon: SwitchDaemon) -> None:
    groups = together(daemon, "stays", job_priority=7)
    with pytest.raises(JobError, match="128 slots in a row are needed and 0 of 128 are free"):
        together(daemon, "urgent", job_priority=0, timeout_s=3.5)
    assert all(group.failure is None for group in groups)
    close(groups)


def test_a_rank_that_ends_while_the_job_is_away_ends_the_calls_of_the_others(daemon: SwitchDaemon) -> None:
    groups = together(daemon, "patient", fallback="ring")
    urgent = together(daemon, "urgent", job_priority=0)
    groups[1].close()
    assert isinstance(groups[0].allreduce(np.ones(10, np.int32)).exception(SOON_S), AggregationFailed)
    close([*groups, *urgent])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": "switch"}, "option fallback 'switch' is unknown; allowed, perhaps with a link: ring"),
        ({"job_priority": 8}, "job_priority 8: 0 to 7"),
        ({"weight": 0}, "weight 0: 1 to 1000"),
    ],
)
def test_what_cannot_be_is_refused(daemon: SwitchDaemon, options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        together(daemon, "odd", **options)


def test_a_job_that_can_do_with_fewer_slots_gets_what_is_free(daemon: SwitchDaemon) -> None:
    first = together(daemon, "first", streams=1, window_slots=80)
    with pytest.warns(UserWarning, match="windows have 48 slots in all, not 128"):
        second = together(daemon, "second", slots_least=16, weight=2)
    sums = [group.allreduce(np.full(30_000, rank + 1, np.int32)) for rank, group in enumerate(second)]
    assert all((one.result(SOON_S) == 3).all() for one in sums)
    close([*first, *second])
