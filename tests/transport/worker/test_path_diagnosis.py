"""Which ends of a data path are a lost switch to a job that can go on without it (C13, C22)."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from switchagg.endpoint import StreamFailed
from switchagg.job import JobConfig, StreamConfig
from transport.control.control_messages import RankAddress, SlotStatus
from transport.worker.path_diagnosis import PathDiagnosis

JOB = JobConfig(1, 7, 3, 32, (StreamConfig(0, 8),))
EVENT = StreamFailed(0, 4, 0, 4, 31, "no result")


class Membership:
    """Of rank 0, at a switch whose slot of the failed chunk has seen these ranks."""

    rank, job = 0, "path"

    def __init__(self, seen: list[int]) -> None:
        answer: Future[Any] = Future()
        slots = [SlotStatus(4, 0, 4, seen)]
        answer.set_result(SimpleNamespace(jobs=[SimpleNamespace(generation=7, slots=slots)]))
        self.client = SimpleNamespace(query=lambda job: answer)
        self.failed: list[tuple[str, tuple[int, ...], bool]] = []

    def fail(self, detail: str, missing: tuple[int, ...] = (), event: Any = None, *, recoverable: bool = False) -> None:
        self.failed.append((detail, missing, recoverable))


def diagnosis(membership: Membership) -> PathDiagnosis:
    members = {rank: RankAddress(rank, "10.0.0.1", rank + 1) for rank in range(3)}
    return PathDiagnosis(membership, JOB, members, ("10.0.0.1", 1), ("10.0.0.9", 5556), 28)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "words", "missing", "recoverable"),
    [
        ([0, 1, 2], "it does not arrive here", (), True),
        ([1, 2], "own packets do not arrive", (0,), True),
        ([0, 1], "missing at the switch", (2,), False),
    ],
)
def test_a_stream_without_results_is_a_lost_switch_unless_another_rank_is_missing(
    seen: list[int], words: str, missing: tuple[int, ...], recoverable: bool
) -> None:
    membership = Membership(seen)
    diagnosis(membership).stream_failed(EVENT)
    [(detail, ranks, is_recoverable)] = membership.failed
    assert words in detail
    assert (ranks, is_recoverable) == (missing, recoverable)


def test_a_loop_that_ends_by_itself_is_a_lost_switch() -> None:
    membership = Membership([])
    diagnosis(membership).loop_ended("the worker loop ended: bad file descriptor")
    assert membership.failed == [("the worker loop ended: bad file descriptor", (), True)]
