"""Sessions of jobs with partial sums, over UDP on this host: nobody waits for a rank that makes no calls (Q1 to Q8)."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from waiting import until

from switchagg.calls.call_request import CallRequest
from switchagg.dataplane.plane_kinds import DATAPLANES, check_partial
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature
from switchagg.errors import JobError
from switchagg.native import library
from switchagg.priority import BEST_EFFORT
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

WORKERS, LATE = 4, 3
SOON_S = 60.0
PLANES = [name for name, kind in DATAPLANES.items() if kind.partial]


@pytest.fixture(params=PLANES)
def daemon(request: pytest.FixtureRequest) -> Iterator[SwitchDaemon]:
    if request.param == "native" and library.missing():
        pytest.skip(f"native data plane: {library.missing()}")
    with started(request.param) as running:
        yield running


def started(plane: str) -> SwitchDaemon:
    return SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, dataplane=plane))


def join_all(daemon: SwitchDaemon, *changes: dict[str, Any], workers: int = WORKERS) -> list[SwitchSession]:
    """changes: of each rank, or of all."""

    def join(rank: int) -> SwitchSession:
        own = changes[min(rank, len(changes) - 1)]
        options = JoinOptions(**{"elements": 32, "window_slots": 8, "timeout_s": 10.0, **own})
        return SwitchSession.join(daemon.control_endpoint, "job", rank, workers, options)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(join, range(workers)))


def close_all(sessions: list[SwitchSession]) -> None:
    for session in sessions:
        session.close()


def sums(futures: "list[Future[Any]]") -> list[NDArray[Any]]:
    return [future.result(SOON_S) for future in futures]


def residual(session: SwitchSession) -> NDArray[np.float32]:
    assert session.compression is not None
    found: NDArray[np.float32] = session.compression.state_dict()["kept"]["residual"]["key 1"]
    return found


@pytest.mark.parametrize("cores", [("python",) * WORKERS, ("native",) * WORKERS, ("native", "python") * 2])
def test_nobody_waits_for_a_late_rank_whose_values_come_with_its_next_sum(
    daemon: SwitchDaemon, cores: tuple[str, ...]
) -> None:
    sessions = join_all(daemon, *({"backups": 1, "codec": "lanes8+ef", "core": core} for core in cores))
    assert tuple(session.core for session in sessions) == cores

    def begin(rank: int, value: float, op: str = "sum") -> "Future[Any]":
        return sessions[rank].allreduce(np.full(2000, value, np.float32), op, key=1)

    for _ in range(6):  # more than a window, before the last rank makes a call
        assert all(set(total) == {96.0} for total in sums([begin(rank, 32.0) for rank in range(LATE)]))
    late = sessions[LATE]
    for _ in range(6):
        until(lambda: late.finished_without([2000]))
        (total,) = sums([begin(LATE, 64.0)])
        assert set(total) == {96.0}
    assert set(residual(late)) == {6 * 64.0}, "what was not counted, of every sum"
    assert not late.finished_without([2000])

    # The next sum has it, and lacks rank 0, which has its result all the same.
    means = sums([begin(rank, 0.0 if rank == LATE else 32.0, "avg") for rank in (1, 2, LATE)])
    means += sums([begin(0, 16.0, "avg")])
    assert len({mean.tobytes() for mean in means}) == 1, "all ranks have the same bits"
    assert set(residual(sessions[0])) == {16.0}
    left = sum(residual(session).astype(np.float64) for session in sessions[1:])
    np.testing.assert_allclose(3 * means[0].astype(np.float64) + left, 2 * 32 + 6 * 64, rtol=1e-6)
    counted = {name: count for name, count in late.counters.items() if name.startswith("chunks_of_")}
    assert set(counted) == {"chunks_of_3"}
    close_all(sessions)


def test_integers_are_the_exact_sum_of_the_ranks_in_time_and_other_collectives_wait_for_all() -> None:
    with started("reference") as daemon:
        sessions = join_all(daemon, {"backups": 1}, workers=3)
        rng = np.random.default_rng(5)
        given = rng.integers(-(2**31), 2**31, (3, 300)).astype(np.int32)
        totals = sums([sessions[rank].allreduce(given[rank].copy()) for rank in (0, 1)])
        totals += sums([sessions[2].allreduce(given[2].copy())])
        assert all(np.array_equal(total, given[0] + given[1]) for total in totals)

        def call(rank: int, kind: Any, array: NDArray[Any]) -> "Future[Any]":
            signature = CallSignature(kind, "sum", array.dtype, array.size, 0)
            return sessions[rank].call(array, CallRequest(kind, priority=BEST_EFFORT, signature=signature))

        for kind, elements in (("barrier", 0), ("broadcast", 40)):
            arrays = [np.full(elements, rank, np.int32) for rank in range(3)]
            early = [call(rank, kind, arrays[rank]) for rank in (1, 2)]
            time.sleep(0.02)
            assert not any(future.done() for future in early)
            sums([*early, call(0, kind, arrays[0])])
            assert not np.any(arrays), "rank 0's"
        close_all(sessions)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"link": "rdma"}, "no partial sums with link rdma: its packets are all of one size; take zeromq or udp"),
        ({"codec": "topk"}, "no partial sums with codec topk: it needs all ranks; take one of rows"),
        ({"codec": "lanes8+ef21"}, "no partial sums with codec lanes8.ef21: its totals need every rank's difference"),
        ({"backups": 63}, "backups 63: 0 to 62"),
    ],
)
def test_options_that_exclude_each_other_are_refused_in_a_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        JoinOptions(**{"backups": 1, **options})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{"backups": 1}, {"backups": 0}], "says backups is [01], rank . says [01]; all ranks must agree"),
        ([{"backups": 2}], "backups 2: 0 to 1"),
        ([{"backups": 1, "via": "leaf"}], "join it itself, not by way of 'leaf'"),
        ([{"backups": 1, "can_fall_back": True}], "can't move to a host method and back: leave out its fallback"),
    ],
)
def test_joins_that_cannot_be_are_refused_in_a_line(changes: list[dict[str, Any]], words: str) -> None:
    with started("reference") as daemon, pytest.raises(JobError, match=words):
        join_all(daemon, *({**one, "timeout_s": 3.0} for one in changes), workers=2)


def test_a_data_plane_without_partial_sums_refuses_the_job_naming_those_that_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReferencePlane, "admit", lambda self, job, *rest: check_partial("p4", job))  # as `p4` does
    with (
        started("reference") as daemon,
        pytest.raises(JobError, match=r"p4 has no partial sums; take one of native, r"),
    ):
        join_all(daemon, {"backups": 1}, workers=2)
