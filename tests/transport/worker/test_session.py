"""SwitchSession against a real daemon in this process: sums, and every way a call can end."""

import ctypes
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from waiting import until

from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.native import library
from transport.control.control_client import ControlClient, query_status
from transport.links.udp_link import UdpLink
from transport.switch.daemon import SwitchDaemon, run_switch
from transport.switch.daemon_options import DaemonOptions
from transport.switch.event_log import EventLog
from transport.switch.impairments import parse_impairments
from transport.worker import path_diagnosis
from transport.worker.join_options import JoinOptions, retry_limit_for
from transport.worker.session import SwitchSession

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
LEASE_S = 1.5
SOON_S = 120.0
"""A generous bound for what takes a lease or less."""


@pytest.fixture
def daemon() -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, lease_s=LEASE_S)) as running:
        yield running
    assert threads() == []


@pytest.fixture(params=["native", "python"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What carries the packets of the sessions that `join` makes."""
    chosen: str = request.param
    if chosen == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    monkeypatch.setitem(OPTIONS, "core", chosen)
    return chosen


OPTIONS: dict[str, Any] = {"elements": 32, "window_slots": 8, "timeout_s": 10.0}
on_both_cores = pytest.mark.usefixtures("core")


def threads() -> list[str]:
    names = ("control-", "worker-loop-", "switch-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def join(daemon: SwitchDaemon, job: str, rank: int, workers: int, **changes: Any) -> SwitchSession:
    return SwitchSession.join(daemon.control_endpoint, job, rank, workers, JoinOptions(**{**OPTIONS, **changes}))


def join_all(daemon: SwitchDaemon, job: str, workers: int, **changes: Any) -> list[SwitchSession]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda rank: join(daemon, job, rank, workers, **changes), range(workers)))


def close_all(sessions: list[SwitchSession]) -> None:
    for session in sessions:
        session.close()


def failure(future: "Future[Any]") -> AggregationFailed:
    error = future.exception(SOON_S)
    assert isinstance(error, AggregationFailed), error
    return error


def vanish(session: SwitchSession) -> None:
    """What SIGKILL leaves: no heartbeat, no packet, no goodbye."""
    session._membership.client.close()
    assert session._loop is not None
    session._loop.close()


def deafen(session: SwitchSession) -> Callable[[], None]:
    """Lose every packet that comes from now on, in the kernel, until what is returned is called."""
    assert session._loop is not None
    link = session._loop._link
    assert isinstance(link, UdpLink)
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # a socket filter: keep 0 bytes
    program = struct.pack("@HP", 1, ctypes.addressof(instruction))
    link._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    return lambda: link._socket.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


# ---- sums


@on_both_cores
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_calls_of_all_kinds_give_exact_sums_on_every_rank(daemon: SwitchDaemon, workers: int) -> None:
    sessions = join_all(daemon, "sums", workers)
    results = []
    for session in sessions:
        rank = session.rank
        arrays = [
            (np.arange(1000, dtype=np.int32) * (rank + 1), "sum"),
            (np.arange(77, dtype=np.float32) * (rank + 1), "sum"),
            (np.full(1, (rank + 1) << 40, np.int64), "sum"),
            (np.array([rank, -rank, 5], np.int32), "max"),
            (np.zeros(0, np.float32), "sum"),
        ]
        results.append([(array, session.allreduce(array, op)) for array, op in arrays])
    total = workers * (workers + 1) // 2
    expected = [
        np.arange(1000, dtype=np.int32) * total,
        np.arange(77, dtype=np.float32) * total,
        np.array([total << 40]),
        np.array([workers - 1, 0, 5]),
        np.zeros(0),
    ]
    for of_rank in results:
        for (array, future), right in zip(of_rank, expected, strict=True):
            assert future.result(SOON_S) is array
            assert array.tolist() == right.tolist()
    close_all(sessions)


@on_both_cores
def test_concurrent_calls_of_two_jobs_do_not_mix(daemon: SwitchDaemon) -> None:
    jobs = {"a": join_all(daemon, "a", 2), "b": join_all(daemon, "b", 3)}
    futures = [
        (name, number, session.allreduce(np.full(100, number + 1000 * (name == "b"), np.int32)))
        for number in range(30)
        for name, sessions in jobs.items()
        for session in sessions
    ]
    for name, number, future in futures:
        one = number + 1000 * (name == "b")
        assert future.result(SOON_S).tolist() == [one * len(jobs[name])] * 100
    for sessions in jobs.values():
        close_all(sessions)


def test_a_stream_may_be_chosen_and_must_exist(daemon: SwitchDaemon) -> None:
    (session,) = join_all(daemon, "one", 1)
    with session:
        assert session.allreduce(np.ones(3, np.int32), stream=1).result(SOON_S).tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="stream 2: the job has 2"):
            session.allreduce(np.ones(3, np.int32), stream=2)


@on_both_cores
def test_a_refused_call_takes_no_call_number(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "pair", 2)
    with pytest.raises(ValueError, match="one-dimensional"):
        sessions[0].allreduce(np.ones((2, 2), np.float32))
    futures = [session.allreduce(np.ones(5, np.int32)) for session in sessions]
    assert [future.result(SOON_S).tolist() for future in futures] == [[2] * 5] * 2
    close_all(sessions)


def test_status_shows_seen_of_a_call_that_waits(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "wait", 2)
    future = sessions[1].allreduce(np.ones(32, np.int32))
    until(lambda: any(slot["ranks"] == [1] for slot in sessions[0].status()["jobs"][0]["slots"]))
    assert not future.done()
    sessions[0].allreduce(np.ones(32, np.int32))
    assert future.result(SOON_S).tolist() == [2] * 32
    assert sessions[1].counters["results"] == 2
    close_all(sessions)
    with pytest.raises(JobError, match="closed"):
        sessions[0].status()


# ---- cores


def test_the_native_core_is_used_where_it_is_built(daemon: SwitchDaemon) -> None:
    if library.missing():
        pytest.skip(library.missing())
    for core, taken in (("auto", "native"), ("native", "native"), ("python", "python")):
        (session,) = join_all(daemon, "core", 1, core=core)
        with session:
            assert session.core == taken
            assert session.allreduce(np.ones(3, np.int32)).result(SOON_S).tolist() == [1, 1, 1]


def test_a_missing_core_is_reported_once_with_how_to_build_it(
    daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.delenv("SWITCHAGG_NATIVE", raising=False)  # whoever asks to go without is not told
    monkeypatch.setattr(library, "missing", lambda: "libswitchagg.so was not built; install a C compiler")
    for _ in range(2):
        (session,) = join_all(daemon, "core", 1)
        with session:
            assert session.core == "python"
            assert session.allreduce(np.ones(3, np.float32)).result(SOON_S).tolist() == [1, 1, 1]
    assert [str(warning.message).count("install a C compiler") for warning in recwarn.list] == [1]
    with pytest.raises(JobError, match=r"core 'native': .* install a C compiler"):
        join(daemon, "core", 0, 1, core="native")
    with pytest.raises(JobError, match="core 'fpga' is unknown; allowed: auto, native, python"):
        join(daemon, "core", 0, 1, core="fpga")


def test_choosing_the_python_core_gives_no_warning(
    daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("SWITCHAGG_NATIVE", "0")
    monkeypatch.setattr(library, "missing", lambda: "SWITCHAGG_NATIVE=0 asks to go without it")
    (session,) = join_all(daemon, "core", 1)
    with session:
        assert session.core == "python"
    assert recwarn.list == []


# ---- joins that fail


def test_a_missing_rank_is_named(daemon: SwitchDaemon) -> None:
    with pytest.raises(JobError, match=r"rank 1 of 2 did not join job 'lonely' within 0\.3 s; present: rank 0 at 127"):
        join(daemon, "lonely", 0, 2, timeout_s=0.3)
    assert threads() == [name for name in threads() if name.startswith("switch-")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"elements": 361}, "elements 361: this switch takes 1 to 360"),
        ({"window_slots": 1000}, "slots in all 2000"),
        ({"call_timeout_s": 0.0}, "call_timeout_s 0"),
        ({"retry_limit": 0}, "retry_limit 0"),
        ({"retry_limit": 1 << 32}, "retry_limit 4294967296"),
        ({"bind": "203.0.113.7"}, "203.0.113.7"),
        ({"segments_max": 65}, "segments_max 65: 1 to 64"),
        ({"tos": 256}, "tos 256: 0 to 255"),
    ],
)
def test_an_impossible_join_is_refused_with_the_reason(
    daemon: SwitchDaemon, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(JobError, match=words) as refused:
        join(daemon, "odd", 0, 2, **changes)
    assert refused.value.lacks_room == (words == "slots in all 2000")


def test_impossible_addresses_are_refused_with_the_reason() -> None:
    with pytest.raises(JobError, match="expected tcp://HOST:PORT"):
        SwitchSession.join("localhost", "job", 0, 1)
    with pytest.raises(JobError, match="has no IPv4 address"):
        SwitchSession.join("tcp://no.such.host.invalid:5555", "job", 0, 1)


# ---- calls that end without a result


@on_both_cores
def test_a_dead_rank_fails_all_calls_and_is_named_and_the_switch_keeps_running(daemon: SwitchDaemon) -> None:
    bystanders = join_all(daemon, "other", 2)
    sessions = join_all(daemon, "doomed", 3)
    address = "{}:{}".format(*sessions[1]._diagnosis.address)
    pending = [sessions[rank].allreduce(np.ones(500, np.float32)) for rank in (0, 2)]
    vanish(sessions[1])
    for future in pending:
        error = failure(future)
        assert error.missing == (1,)
        assert error.job == "doomed"
        assert error.generation == sessions[0].job.generation
        assert f"rank 1 at {address}" in str(error)
    later = sessions[0].allreduce(np.ones(3, np.float32))
    assert failure(later).missing == (1,)
    assert sessions[0].failure is not None
    close_all([sessions[0], sessions[2], sessions[1]])
    again = join_all(daemon, "doomed", 3)
    assert again[0].job.generation != sessions[0].job.generation
    futures = [session.allreduce(np.ones(500, np.int32)) for session in [*again, *bystanders]]
    assert [future.result(SOON_S)[0] for future in futures] == [3, 3, 3, 2, 2]
    close_all(again)
    close_all(bystanders)


@on_both_cores
def test_a_rank_that_leaves_too_early_fails_the_calls_it_did_not_finish(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "early", 2)
    for _ in range(3):
        for future in [session.allreduce(np.ones(50, np.int32)) for session in sessions]:
            assert future.result(SOON_S)[0] == 2
    pending = sessions[0].allreduce(np.ones(50, np.int32))
    sessions[1].close()
    error = failure(pending)
    assert error.missing == (1,)
    assert "left after 3 calls" in str(error)
    sessions[0].close()


@on_both_cores
def test_a_rank_may_leave_after_its_last_call(daemon: SwitchDaemon) -> None:
    for _ in range(20):
        sessions = join_all(daemon, "short", 2)
        futures = [session.allreduce(np.ones(2000, np.int32)) for session in sessions]
        assert futures[1].result(SOON_S)[0] == 2
        sessions[1].close()
        assert futures[0].result(SOON_S)[0] == 2
        sessions[0].close()


@on_both_cores
def test_results_in_flight_arrive_after_their_last_sender_has_left(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "under way", 2)
    hear_again = deafen(sessions[0])
    first, second = (sessions[0].allreduce(np.ones(9, np.int32)) for _ in range(2))
    assert sessions[1].allreduce(np.ones(9, np.int32)).result(SOON_S)[0] == 2
    sessions[1].close()
    until(lambda: bool(sessions[0]._membership.departed))
    assert sessions[0].failure is None
    hear_again()
    assert first.result(SOON_S)[0] == 2
    assert "left after 1 calls" in str(failure(second))
    sessions[0].close()


def test_a_call_made_after_a_departure_fails_at_once(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "late", 2)
    sessions[1].close()
    until(lambda: bool(sessions[0]._membership.departed))
    assert "left after 0 calls" in str(failure(sessions[0].allreduce(np.ones(3, np.int32))))
    sessions[0].close()


@on_both_cores
def test_closing_fails_what_is_pending_and_is_idempotent(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "close", 2)
    pending = sessions[0].allreduce(np.ones(3, np.int32))
    sessions[0].close()
    sessions[0].close()
    assert "the session was closed" in str(failure(pending))
    assert "the session was closed" in str(failure(sessions[0].allreduce(np.ones(3, np.int32))))
    sessions[1].close()


@on_both_cores
def test_a_slow_rank_is_waited_for(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "slow", 2)
    first = sessions[0].allreduce(np.ones(3000, np.float32))
    time.sleep(2 * LEASE_S)
    second = sessions[1].allreduce(np.ones(3000, np.float32))
    assert first.result(SOON_S)[-1] == 2.0
    assert second.result(SOON_S)[-1] == 2.0
    close_all(sessions)


@on_both_cores
def test_a_call_limit_that_passes_names_the_ranks_the_switch_has_not_seen(daemon: SwitchDaemon) -> None:
    sessions = join_all(daemon, "limit", 3, retry_limit=2)
    futures = [sessions[rank].allreduce(np.ones(100, np.int32)) for rank in (0, 2)]
    errors = [failure(future) for future in futures]
    # One found out by itself; the other too, or it heard from the first, whose words it repeats.
    first = next(error for error in errors if error.missing == (1,))
    assert "missing at the switch" in str(first)
    assert (first.stream, first.chunk) == (0, 0)
    assert first.slot == sessions[0].job.streams[0].first_slot
    assert "rank 1 at {}:{}".format(*sessions[1]._diagnosis.address) in str(first)
    assert all(error.missing in {(1,), (0,), (2,)} for error in errors)
    close_all(sessions)


@on_both_cores
def test_a_data_path_that_loses_every_packet_is_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_diagnosis, "STALL_S", 1.0)
    monkeypatch.setattr(path_diagnosis, "STALL_CHECK_S", 0.5)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hole:
        hole.bind(("127.0.0.1", 0))
        with SwitchDaemon(
            DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), advertise=("127.0.0.1", hole.getsockname()[1]))
        ) as daemon:
            sessions = join_all(daemon, "hole", 2)
            monkeypatch.setattr(ControlClient, "is_silent", True)  # an outage of both paths: none is to blame
            futures = [session.allreduce(np.ones(100, np.int32)) for session in sessions]
            time.sleep(3.0)
            assert not any(future.done() for future in futures)
            monkeypatch.setattr(ControlClient, "is_silent", False)
            errors = [failure(future) for future in futures]
            assert any("no packet gets through between this rank" in str(error) for error in errors)
            needed = 20 + 8 + 20 + 4 * sessions[0].job.elements  # headers of IPv4, UDP and our own
            assert any(f"an MTU below {needed}, which" in str(error) for error in errors)
            close_all(sessions)


def test_a_stall_by_a_slow_rank_is_not_reported_as_a_broken_path(
    daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_diagnosis, "STALL_S", 0.5)
    monkeypatch.setattr(path_diagnosis, "STALL_CHECK_S", 0.0)
    monkeypatch.setattr(path_diagnosis, "STALL_TIMEOUTS", 1)
    sessions = join_all(daemon, "stall", 2)
    first = sessions[0].allreduce(np.ones(3000, np.float32))
    until(lambda: sessions[0]._diagnosis.stall.asked_ns > 0)
    time.sleep(2.0)
    sessions[1].allreduce(np.ones(3000, np.float32))
    assert first.result(SOON_S)[-1] == 2.0
    close_all(sessions)


@on_both_cores
def test_a_stopping_switch_ends_calls_and_joins_with_its_reason() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0))) as daemon, ThreadPoolExecutor(1) as pool:
        sessions = join_all(daemon, "stop", 2)
        waiting = pool.submit(join, daemon, "never", 0, 2)
        pending = sessions[0].allreduce(np.ones(3, np.int32))
        until(lambda: "never" in query_status(daemon.control_endpoint).waiting)
        daemon.stop("the switch goes to sleep")
        assert "the switch goes to sleep" in str(failure(pending))
        with pytest.raises(JobError, match="the switch goes to sleep"):
            waiting.result(SOON_S)
        close_all(sessions)


def test_a_failed_data_plane_stops_the_switch(daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = join_all(daemon, "crash", 2)

    def crash() -> None:
        raise RuntimeError("bit rot")

    monkeypatch.setattr(daemon._loop, "_run_once", crash)  # the present iteration ends within a second
    pending = sessions[0].allreduce(np.ones(3, np.int32))
    assert "the switch's data plane failed: RuntimeError: bit rot" in str(failure(pending))
    assert daemon.wait(SOON_S)
    close_all(sessions)


@on_both_cores
def test_a_failed_worker_loop_is_reported_to_the_others(daemon: SwitchDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = join_all(daemon, "broken", 2)

    def crash() -> None:
        raise RuntimeError("bit rot")

    assert sessions[1]._loop is not None
    monkeypatch.setattr(sessions[1]._loop, "_run_once", crash)  # the present iteration ends within a second
    pending = sessions[0].allreduce(np.ones(3, np.int32))
    error = failure(pending)
    assert error.missing == (1,)
    assert "the worker loop ended: bit rot" in str(error)
    close_all(sessions)


# ---- processes


@on_both_cores
def test_a_forked_child_can_not_use_the_session(daemon: SwitchDaemon) -> None:
    (session,) = join_all(daemon, "fork", 1)
    child = os.fork()
    if child == 0:  # no assertion here: only the status goes back
        status = 1
        try:
            session.allreduce(np.ones(3, np.int32))
        except SwitchaggError as error:
            status = 0 if "a forked child must join on its own" in str(error) else 2
        finally:
            session.close()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.allreduce(np.ones(3, np.int32)).result(SOON_S).tolist() == [1, 1, 1]
    session.close()


def test_an_interpreter_that_ends_leaves_the_job(daemon: SwitchDaemon, core: str) -> None:
    program = (
        "import sys, numpy as np; from transport.worker.session import SwitchSession\n"
        "from transport.worker.join_options import JoinOptions\n"
        f"session = SwitchSession.join(sys.argv[1], 'exit', 0, 1, JoinOptions(window_slots=8, core={core!r}))\n"
        "print(session.allreduce(np.ones(3, np.float32)).result(10)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.control_endpoint], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "1.0\n"
    assert done.stderr == ""
    status = query_status(daemon.control_endpoint)
    assert status.jobs == []
    assert status.control_counters["left"] == 1


# ---- the daemon


def test_an_address_in_use_is_one_line_that_says_how_to_fix_it(
    daemon: SwitchDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_switch(DaemonOptions(daemon.control_endpoint, ("127.0.0.1", 0))) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert f"control address {daemon.control_endpoint}: Address already in use; choose another with" in told.err
    assert run_switch(DaemonOptions("tcp://127.0.0.1:0", daemon.data_address)) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "Address already in use; choose another with --data HOST:PORT" in told.err


def test_impairments_take_effect_and_are_counted_in_the_status() -> None:
    if library.missing():
        pytest.skip(f"impairments need the native data plane: {library.missing()}")
    bad = parse_impairments("loss=5%,duplicate=5%,seed=4")
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64, impairments=bad)) as running:
        sessions = join_all(running, "bad", 2)
        arrays = [np.arange(20_000, dtype=np.int32) for _ in sessions]
        for future in [session.allreduce(array) for session, array in zip(sessions, arrays, strict=True)]:
            assert (future.result(SOON_S) == 2 * np.arange(20_000)).all()
        counters = query_status(running.control_endpoint).data_counters
        assert min(counters[f"{way}_{what}"] for way in ("up", "down") for what in ("lost", "duplicated")) > 0
        close_all(sessions)


def test_a_closed_log_does_not_end_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `switchagg switch 2>&1 | head -1`."""

    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stderr", Broken())
    wish = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64)
    with SwitchDaemon(wish, record=EventLog("switchagg switch").write) as running:
        (session,) = join_all(running, "alone", 1)
        assert session.allreduce(np.ones(3, np.int32)).result(SOON_S).tolist() == [1, 1, 1]
        close_all([session])
        assert running.failure is None


def test_text_from_a_worker_can_not_forge_a_log_line() -> None:
    lines: list[str] = []
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64), log=lines.append) as running:
        sessions = join_all(running, "talk", 2)
        sessions[0]._membership.client.leave([], "tired\njob 'other' failed\x1b[2J é", SOON_S)
        close_all(sessions)
    assert any(r"tired\njob 'other' failed\x1b[2J é" in line for line in lines), lines
    assert all(line.isprintable() for line in lines)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_control_plane_ends_the_switch_with_an_error() -> None:
    def log(line: str) -> None:
        raise RuntimeError("bit rot")

    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=64, lease_s=LEASE_S), log=log)
    daemon.start()
    with pytest.raises(JobError):
        join(daemon, "alone", 0, 1, timeout_s=2.0)
    assert daemon.wait(SOON_S)
    assert repr(daemon.failure) == "RuntimeError('bit rot')"
    daemon.stop()
    assert threads() == []


def test_a_join_that_can_not_be_sent_leaves_no_link_open(daemon: SwitchDaemon) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(JobError, match="timeout_s inf"):
        join(daemon, "for ever", 0, 1, timeout_s=float("inf"))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_switch_on_all_interfaces_is_reached_where_the_worker_found_it() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("0.0.0.0", 0))) as daemon:
        (session,) = join_all(daemon, "any", 1)
        assert session.allreduce(np.ones(3, np.int32)).result(SOON_S).tolist() == [1, 1, 1]
        session.close()


def test_the_call_timeout_becomes_a_number_of_timeouts() -> None:
    for call_timeout_s in (0.1, 1.0, 1800.0):
        limit = retry_limit_for(call_timeout_s, 5_000_000, 1_000_000_000)
        waited_s = sum(min(0.005 * 2.0 ** min(number, 60), 1.0) for number in range(limit))
        assert call_timeout_s <= waited_s <= call_timeout_s + 2.5
    assert retry_limit_for(1e12) == retry_limit_for(math.inf) == 1 << 31
