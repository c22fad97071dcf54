"""Priority classes of a job's streams, from the join to the call: ranges, agreement, and slots that never disagree."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switchagg.controller.admission import Controller
from switchagg.errors import AggregationFailed, JobError
from switchagg.job import StreamConfig
from switchagg.join import JobTerms, Join
from switchagg.membership import JobAdmitted, JoinRefused
from switchagg.native import library
from transport.control import control_messages
from transport.group.switch_group import SwitchGroup
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SOON_S = 120.0
WISH = Join(
    job="j",
    rank=0,
    workers=2,
    elements=32,
    streams=2,
    window_slots=64,
    address=("10.0.0.1", 4000),
    incarnation=70,
    timeout_ns=10**9,
    priorities=(0, 7),
)


def refusals(first: Join, second: Join) -> list[str]:
    controller = Controller(1024, 360, lambda: 1)
    controller.join(first, 0)
    controller.join(replace(second, rank=1, address=("10.0.0.1", 4001), incarnation=71), 1)
    found = []
    while (event := controller.next_event()) is not None:
        assert isinstance(event, JoinRefused)
        found.append(event.reason)
    return found


def test_c1_every_stream_gets_its_range_and_class() -> None:
    controller = Controller(1024, 360, lambda: 1)
    wish = replace(WISH, workers=1, streams=3, window_slots=(8, 64, 16), priorities=(0, 7, 3))
    controller.join(wish, 0)
    admitted = controller.next_event()
    assert isinstance(admitted, JobAdmitted)
    assert admitted.job.streams == (StreamConfig(0, 8, 0), StreamConfig(8, 64, 7), StreamConfig(72, 16, 3))
    assert controller.free_slots() == 1024 - 88


def test_c1_ranks_that_disagree_on_classes_or_windows_are_refused_naming_both() -> None:
    said = "rank 1 says priorities is 7, 0, rank 0 says 0, 7; all ranks must agree"
    assert refusals(WISH, replace(WISH, priorities=(7, 0))) == [said]
    assert set(refusals(WISH, replace(WISH, priorities=()))) == {
        "rank 1 says priorities is the same for all streams, rank 0 says 0, 7; all ranks must agree"
    }
    assert set(refusals(WISH, replace(WISH, window_slots=(64, 32)))) == {
        "rank 1 says window_slots is 64, 32, rank 0 says 64; all ranks must agree"
    }


def test_c1_ranks_that_disagree_on_splitting_are_refused_naming_both() -> None:
    assert refusals(WISH, replace(WISH, split_calls=1)) == [
        "rank 1 says split_calls is 1, rank 0 says 0; all ranks must agree"
    ]


def test_the_classes_of_a_job_come_back_from_its_message() -> None:
    terms = JobTerms(elements=360, window_slots=(64, 8), priorities=(3, 0))
    admitted = control_messages.Admitted("j", 1, 2, 2, terms, 0, "", 5556, 4, [])
    (frames,) = [control_messages.decode_answer(control_messages.encode(admitted))]
    assert isinstance(frames, control_messages.Admitted)
    assert [stream.priority for stream in frames.config().streams] == [3, 0]
    wrong = replace(terms, window_slots=(64, 8, 8))
    with pytest.raises(ValueError, match="priorities 3, 0: one for each of"):
        control_messages.Admitted("j", 1, 2, 2, replace(wrong, streams=3), 0, "", 5556, 4, []).config()


def test_more_urgent_classes_have_fewer_slots_unless_told() -> None:
    assert JoinOptions(priorities=(0, 7, 2, 4, 7)).windows == (64, 256, 64, 128, 256)
    assert JoinOptions(priorities=(3, 3)).windows == (256, 256)
    assert JoinOptions(priorities=(3, 3)).requested_slots == JoinOptions().requested_slots == 512
    assert JoinOptions(priorities=(0, 7), window_slots=256).requested_slots == 512


# ---- with a daemon


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, lease_s=2.0)) as running:
        yield running


def join_all(daemon: SwitchDaemon, job: str, options: list[dict[str, Any]]) -> list[SwitchSession]:
    def join(rank: int) -> SwitchSession:
        given = {"elements": 32, "window_slots": 8, "timeout_s": 10.0, **options[rank]}
        return SwitchSession.join(daemon.control_endpoint, job, rank, len(options), JoinOptions(**given))

    with ThreadPoolExecutor(len(options)) as pool:
        return list(pool.map(join, range(len(options))))


@pytest.mark.parametrize("core", ["native", "python"])
def test_w11_ranks_agree_whatever_order_they_mix_the_classes_in(daemon: SwitchDaemon, core: str) -> None:
    if core == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    options = {"priorities": (7, 0, 3, 7), "window_slots": (8, 4, 5, 8), "core": core}
    sessions = join_all(daemon, f"mixed {core}", 3 * [options])
    assert [stream.window_slots for stream in sessions[0].job.streams] == [8, 4, 5, 8]
    calls = {kind: [kind * 1000 + number for number in range(12)] for kind in (0, 3, 7)}

    def run(rank: int) -> list[int]:
        order = random.Random(rank)
        left = {kind: list(values) for kind, values in calls.items()}
        futures = {}
        while any(left.values()):
            kind = order.choice([kind for kind in left if left[kind]])
            value = left[kind].pop(0)
            futures[value] = sessions[rank].allreduce(np.full(500, value + rank, np.int32), priority=kind)
        return [value for value, future in futures.items() if set(future.result(SOON_S)) != {3 * value + 3}]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(3))) == [[], [], []]
    for session in sessions:
        session.close()


def test_c7_a_rank_that_leaves_between_classes_fails_what_it_did_not_finish(daemon: SwitchDaemon) -> None:
    zero, one = join_all(daemon, "between", 2 * [{"priorities": (0, 7)}])
    bulk = zero.allreduce(np.ones(50, np.int32), priority=7)
    urgent = zero.allreduce(np.ones(50, np.int32), priority=0)
    assert one.allreduce(np.ones(50, np.int32), priority=0).result(SOON_S)[0] == 2
    assert urgent.result(SOON_S)[0] == 2
    one.close()
    error = bulk.exception(SOON_S)
    assert isinstance(error, AggregationFailed)
    assert error.missing == (1,)
    assert "left after 1 calls" in str(error)
    zero.close()


def test_ranks_that_disagree_on_classes_fail(daemon: SwitchDaemon) -> None:
    with pytest.raises(JobError, match=r"rank \d says priorities is (0, 7|7, 0), rank \d says (0, 7|7, 0)"):
        join_all(daemon, "torn", [{"priorities": (0, 7), "timeout_s": 1}, {"priorities": (7, 0), "timeout_s": 1}])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": 3, "priorities": (0, 7)}, "priorities 0, 7: one for each of 3 streams"),
        ({"window_slots": (8, 8, 8), "priorities": (0, 7)}, "window_slots 8, 8, 8: one for each of 2 streams"),
        ({"window_slots": ()}, "window_slots is empty"),
        ({"priorities": (0, 9)}, "priority 9: 0 to 7"),
        ({"priorities": (0,) * 257}, "streams 257: 1 to 256"),
    ],
)
def test_impossible_classes_are_refused(daemon: SwitchDaemon, options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        join_all(daemon, "impossible", [options])


def test_a_call_of_a_class_without_stream_is_refused(daemon: SwitchDaemon) -> None:
    (session,) = join_all(daemon, "alone", [{"priorities": (0, 7)}])
    with pytest.raises(ValueError, match="priority 3: no stream has this class; the job's classes: 0, 7"):
        session.allreduce(np.ones(3, np.int32), priority=3)
    assert session.allreduce(np.ones(3, np.int32)).result(SOON_S)[0] == 1
    session.close()


@pytest.mark.parametrize("core", ["native", "python"])
def test_w11_split_calls_have_the_bits_of_whole_ones_between_calls_that_take_turns(
    daemon: SwitchDaemon, core: str
) -> None:
    if core == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    options = {"priorities": (7, 7, 0), "window_slots": (4, 8, 4), "core": core}
    random = np.random.default_rng(3)
    shapes: list[tuple[str, int, Any]] = [
        ("allreduce", 1000, np.float32),
        ("allreduce", 10, np.int32),
        ("reduce_scatter", 3001, np.float32),
        ("allreduce", 129, np.int32),
        ("allreduce", 777, np.float64),
        ("all_gather", 2001, np.uint8),
        ("allreduce", 128, np.int64),
        ("reduce", 1000, np.int32),
        ("broadcast", 5000, np.float64),
        ("allreduce", 5000, np.float32),
    ]
    inputs = [[(random.normal(size=size) * 100).astype(dtype) for _, size, dtype in shapes] for _ in range(3)]
    found = []
    for split in (False, True):
        sessions = join_all(daemon, f"split {core} {split}", 3 * [{**options, "split_calls": split}])

        def run(rank: int, sessions: list[SwitchSession] = sessions) -> tuple[list[Any], int]:
            arrays = [array.copy() for array in inputs[rank]]
            group = SwitchGroup(sessions[rank])
            calls = list(zip([kind for kind, _, _ in shapes], arrays, strict=True))
            futures = [getattr(group, kind)(array, priority=7) for kind, array in calls]
            for (kind, array), future in zip(calls, futures, strict=True):
                assert future.result(SOON_S) is array or kind == "reduce_scatter"
            with sessions[rank]._membership.lock:
                return [array.tobytes() for array in arrays], sum(sessions[rank]._calls.of_job.ledger.finished())

        with ThreadPoolExecutor(3) as pool:
            found.append(list(pool.map(run, range(3))))
        for session in sessions:
            session.close()
    (whole, split_up) = found
    assert [bits for bits, _ in split_up] == [bits for bits, _ in whole]
    assert [finished for _, finished in whole] == [10, 10, 10]
    assert [finished for _, finished in split_up] == [19, 19, 19]  # all but that of ten values are two


def test_w12_ranks_whose_split_calls_differ_in_size_are_both_named(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "differ", 2 * [{"streams": 2, "split_calls": True}])
    sizes = (2000, 100)  # the second is not split
    futures = [session.allreduce(np.ones(size, np.int32)) for session, size in zip(sessions, sizes, strict=True)]
    for future in futures:
        with pytest.raises(AggregationFailed, match=r"2000|100") as caught:
            future.result(SOON_S)
        assert "100" in str(caught.value)
    for session in sessions:
        session.close()
