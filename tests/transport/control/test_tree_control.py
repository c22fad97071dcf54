"""Daemons below a daemon: sessions join the root by way of their switch; exact sums, whoever dies is named."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from waiting import until

from switchagg.calls.call_request import CallRequest
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.description import CallSignature
from switchagg.errors import AggregationFailed, JobError, SwitchaggError
from switchagg.priority import BEST_EFFORT
from transport.control.control_client import query_status
from transport.control.requests import Requests
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.switch.impairments import Impairments, parse_impairments
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

LIVENESS_S = 60.0
LEASE_S = 1.0
OPTIONS = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512, lease_s=LEASE_S, dataplane="reference")
JOIN = JoinOptions(elements=8, streams=1, window_slots=8, timeout_s=20.0, core="python")


class Tree:
    """A root and switches below, as names and parents say."""

    def __init__(self, impairments: Impairments | None = None, **parents: str) -> None:
        self.lines: list[str] = []
        root_options = OPTIONS if impairments is None else replace(OPTIONS, dataplane="native", impairments=impairments)
        self.root = SwitchDaemon(root_options, log=self.lines.append)
        self.root.start()
        self.daemons = {"root": self.root}
        for name, parent in parents.items():
            self.start(name, parent)
        self.until_registered(parents)

    def start(self, name: str, parent: str) -> None:
        above = self.daemons[parent].control_endpoint
        daemon = SwitchDaemon(replace(OPTIONS, parent=above, name=name), log=self.lines.append)
        daemon.start()
        self.daemons[name] = daemon

    @property
    def registered(self) -> set[str]:
        return set(query_status(self.root.control_endpoint).switches)

    def until_registered(self, names: Sequence[str] | dict[str, str]) -> None:
        until(lambda: set(names) <= self.registered, "\n".join(self.lines))

    def join(self, vias: Sequence[str], job: str = "train", **options: object) -> list[SwitchSession]:
        """A session for each rank, by way of these switches."""
        with ThreadPoolExecutor(len(vias)) as pool:
            futures = [
                pool.submit(
                    SwitchSession.join,
                    self.root.control_endpoint,
                    job,
                    rank,
                    len(vias),
                    replace(JOIN, via=via, **options),  # type: ignore[arg-type]
                )
                for rank, via in enumerate(vias)
            ]
        return [future.result() for future in futures]

    def close(self) -> None:
        for daemon in reversed(self.daemons.values()):
            daemon.stop()


@contextmanager
def tree(impairments: Impairments | None = None, **parents: str) -> Iterator[Tree]:
    made = Tree(impairments, **parents)
    try:
        yield made
    finally:
        made.close()


def check_sums(sessions: Sequence[SwitchSession], values: int = 300) -> None:
    random = np.random.default_rng(3)
    inputs = random.integers(-(1 << 30), 1 << 30, (len(sessions), values)).astype(np.int32)
    arrays = inputs.copy()
    futures = [session.allreduce(array) for session, array in zip(sessions, arrays, strict=True)]
    for future in futures:
        future.result(LIVENESS_S)
    assert (arrays == inputs.sum(axis=0, dtype=np.int32)).all()


def close(sessions: Sequence[SwitchSession]) -> None:
    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(SwitchSession.close, sessions))


def test_unequal_racks_a_worker_of_the_root_and_three_levels_sum_exactly() -> None:
    with tree(rack1="root", pod="root", rack2="pod", idle="root") as net:
        sessions = net.join(["rack1", "", "rack2", "rack1", "rack2", "pod", "rack1"])
        assert [session.job.workers for session in sessions] == [7] * 7
        assert not any(session._calls.of_job.routed for session in sessions)  # H2
        check_sums(sessions)
        floats = [np.full(100, rank + 0.5, np.float32) for rank in range(7)]
        for future in [session.allreduce(array) for session, array in zip(sessions, floats, strict=True)]:
            future.result(LIVENESS_S)
        assert (np.array(floats) == 24.5).all()
        assert sessions[0].status()["switches"].keys() == {"rack1", "pod", "rack2", "idle"}
        assert not query_status(net.daemons["idle"].control_endpoint).jobs
        (job,) = query_status(net.daemons["rack2"].control_endpoint).jobs
        assert job.name == "train"
        close(sessions)
        until(lambda: not query_status(net.daemons["rack2"].control_endpoint).jobs)


def test_a_job_within_one_rack_is_summed_there_alone_and_shares_no_slots_with_others_below() -> None:
    with tree(rack1="root", rack2="root") as net:
        one, two = net.join(["rack1"] * 2, "one"), net.join(["rack2"] * 2, "two")
        assert one[0].job.slots == two[0].job.slots  # no switch has both
        both = net.join(["rack1", "rack2"], "both")
        assert both[0].job.slots[0] >= one[0].job.slots[1]
        for sessions in (one, two, both):
            check_sums(sessions)
        assert len(query_status(net.root.control_endpoint, "one").jobs) == 3
        for sessions in (one, two, both):
            close(sessions)


def wait_in_call(sessions: Sequence[SwitchSession]) -> "list[object]":
    """All ranks but the last begin a call, so that it goes on until something ends it."""
    futures = [session.allreduce(np.ones(100, np.int32)) for session in sessions[:-1]]
    until(lambda: sessions[0].counters["sent"] > 0)
    return futures  # type: ignore[return-value]


def slots_of(session: SwitchSession) -> list[dict[str, object]]:
    (job,) = session.status()["jobs"]
    return list(job["slots"])


def failures(futures: "list[object]") -> list[str]:
    reasons = []
    for future in futures:
        with pytest.raises(AggregationFailed) as caught:
            future.result(LIVENESS_S)  # type: ignore[attr-defined]
        reasons.append(str(caught.value))
    return reasons


def cut_off(daemon: SwitchDaemon, patch: pytest.MonkeyPatch) -> None:
    """As if it were killed: it says nothing more to anyone."""
    assert daemon._leaf is not None
    dead, send = daemon._leaf._thread, Requests.send
    patch.setattr(Requests, "send", lambda *to, **how: threading.current_thread() is dead or send(*to, **how))


def test_a_leaf_that_dies_or_stops_ends_the_job_for_all_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tree(rack1="root", rack2="root") as net:
        sessions = net.join(["rack1", "rack1", "rack2", "rack2"])
        futures = wait_in_call(sessions)
        # the switch below rank 3 has rank 2's values, and nothing has gone up from there (C20)
        until(lambda: {tuple(slot["ranks"]) for slot in slots_of(sessions[0])} == {(0, 1, 2)})
        began_s = time.monotonic()
        cut_off(net.daemons["rack2"], monkeypatch)
        for reason in failures(futures):
            assert "switch 'rack2' at 127.0.0.1:" in reason
            assert "no heartbeat for 1 s" in reason
        assert time.monotonic() - began_s < 4 * LEASE_S + 5
        close(sessions)
        # the others go on, and a job by way of the dead one is refused in one line
        close(net.join(["rack1", "rack1"], "next"))
        sessions = net.join(["rack1", ""], "again")
        futures = wait_in_call(sessions)
        net.daemons["rack1"].stop("maintenance")
        for reason in failures(futures):
            assert "switch 'rack1'" in reason
            assert "has stopped: maintenance" in reason
        close(sessions)
        with pytest.raises(JobError, match="switch 'rack2' is not registered here; registered: none"):
            net.join(["rack2"], "late")


def test_a_leaf_that_restarts_within_a_call_ends_it_and_serves_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with tree(rack1="root", rack2="root") as net:
        sessions = net.join(["rack1", "rack2", "rack2"])
        futures = wait_in_call(sessions)
        old = net.daemons["rack2"]
        cut_off(old, monkeypatch)
        assert old._leaf is not None
        old._leaf._reason = "killed"
        port = old.data_address[1]
        old._loop.stop()
        again = SwitchDaemon(
            replace(OPTIONS, parent=net.root.control_endpoint, name="rack2", bind_data=("127.0.0.1", port))
        )
        again.start()
        net.daemons["rack2"] = again
        for reason in failures(futures):
            assert "switch 'rack2' at 127.0.0.1:" in reason
        close(sessions)
        net.until_registered(["rack2"])
        sessions = net.join(["rack1", "rack2", "rack2"], "next")
        check_sums(sessions)
        close(sessions)
        old.stop()


def test_a_root_that_dies_ends_jobs_in_racks_too_and_leaves_wait_for_the_next() -> None:
    with tree(rack1="root", rack2="root") as net:
        sessions = net.join(["rack1", "rack2", "rack2"])
        futures = wait_in_call(sessions)
        port = net.root.control_endpoint
        net.root.stop("power")
        assert all("power" in reason for reason in failures(futures))
        close(sessions)
        until(lambda: not query_status(net.daemons["rack1"].control_endpoint).jobs)
        net.daemons["root"] = net.root = SwitchDaemon(replace(OPTIONS, bind_control=port), log=net.lines.append)
        net.root.start()
        net.until_registered(["rack1", "rack2"])
        sessions = net.join(["rack1", "rack2", "rack2"])
        check_sums(sessions)
        close(sessions)


def test_a_leaf_that_drains_has_its_jobs_leave_and_a_root_has_all() -> None:
    """C27; jobs elsewhere continue, and those that can't leave end with the leaf, by name."""
    with tree(rack1="root", rack2="root") as net:
        leaf = net.daemons["rack1"]
        across = net.join(["rack1", "rack2"], "across", can_fall_back=True)
        fixed = net.join(["rack1"], "fixed")
        elsewhere = net.join(["rack2", "rack2"], "elsewhere", can_fall_back=True)
        leaf._draining._bound_s = 1.0
        leaf.drain("an upgrade")
        until(lambda: all("an upgrade" in session.asked_to_leave for session in across))
        assert not fixed[0].asked_to_leave
        with pytest.raises(JobError, match=r"switch 'rack1' at .* drains: an upgrade"):
            net.join(["rack1"], "late", timeout_s=0.2)
        close(across)
        until(lambda: fixed[0].failure is not None)
        assert "switch 'rack1'" in str(fixed[0].failure)
        assert "within 1 s these jobs had not left: 'fixed'" in str(fixed[0].failure)
        close(fixed)
        assert leaf.wait(LIVENESS_S)
        assert not elsewhere[0].asked_to_leave
        check_sums(elsewhere)
        net.root.drain("an upgrade")
        until(lambda: "an upgrade" in elsewhere[1].asked_to_leave)
        close(elsewhere)
        assert net.root.wait(LIVENESS_S)
        assert (leaf.failure, net.root.failure) == (None, None)


@pytest.mark.parametrize("way", ["up", "down"])
def test_sums_are_exact_where_the_roots_links_lose(way: str) -> None:
    pytest.importorskip("switchagg.native.library").load()
    with tree(parse_impairments("seed=5", **{way: "loss=10%"}), rack1="root", rack2="root") as net:
        sessions = net.join(["rack1", "rack2", "rack2"])
        check_sums(sessions)
        assert net.root._loop.counters()[f"{way}_lost"] > 0
        close(sessions)


def test_trees_that_can_not_be_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATAPLANES, "xdp", replace(DATAPLANES["xdp"], leaf=False))
    with pytest.raises(SwitchaggError, match="that is this switch itself"):
        replace(OPTIONS, bind_control="tcp://127.0.0.1:7777", parent="tcp://127.0.0.1:7777")
    with pytest.raises(SwitchaggError, match="data plane xdp can't be below another switch"):
        replace(OPTIONS, dataplane="xdp", parent="tcp://127.0.0.1:7777")
    with pytest.raises(SwitchaggError, match="zeromq has no switches below others"):
        replace(OPTIONS, link="zeromq", parent="tcp://127.0.0.1:7777")
    with tree(rack1="root") as net:
        with pytest.raises(JobError, match=r"this switch is below tcp://.*SWITCHAGG_VIA=rack1"):
            SwitchSession.join(net.daemons["rack1"].control_endpoint, "wrong", 0, 1, JOIN)
        with pytest.raises(JobError, match="switch 'rack9' is not registered here; registered: 'rack1'"):
            net.join(["rack1", "rack9"])
        options = replace(OPTIONS, parent=net.root.control_endpoint, name="rack1")
        with SwitchDaemon(options, log=net.lines.append) as twin:
            until(lambda: any("has that name and is alive" in line for line in net.lines))
            assert twin.failure is None


def test_switches_in_a_circle_end_with_one_line_each() -> None:
    """Also: a leaf as the root's parent, so that there would be no root."""
    first = SwitchDaemon(replace(OPTIONS, parent="tcp://127.0.0.1:9", name="first"))
    second = SwitchDaemon(replace(OPTIONS, parent=first.control_endpoint, name="second"))
    for daemon, other in ((first, second), (second, first)):
        assert daemon._leaf is not None
        daemon._leaf._path = [other.control_endpoint]
        daemon._leaf._target = other.control_endpoint
        assert daemon._server.leaf is not None
        daemon._server.leaf = replace(daemon._server.leaf, parent=other.control_endpoint)
    threads = [threading.Thread(target=daemon.start) for daemon in (first, second)]
    for thread in threads:
        thread.start()
    try:
        assert first.wait(LIVENESS_S)
        assert "switches in a circle, without a root" in str(first.failure)
    finally:
        first.stop()
        second.stop()


def test_a_job_of_more_than_64_workers_sums_and_its_barrier_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of such a job is described, which is all that a smaller one's barrier sends (W12)."""
    # So many threads may keep a switch of this process from its turn for longer than the others' lease.
    monkeypatch.setitem(globals(), "OPTIONS", replace(OPTIONS, lease_s=LIVENESS_S))
    vias = ["rack1"] * 33 + ["rack2"] * 33
    with tree(rack1="root", rack2="root") as net:
        sessions = net.join(vias)
        barrier = CallRequest(
            "barrier", priority=BEST_EFFORT, signature=CallSignature("barrier", "sum", np.dtype(np.uint8), 0)
        )
        nothing = np.empty(0, np.int32)
        early = [session.call(nothing, barrier) for session in sessions[:-1]]
        time.sleep(0.3)
        assert not any(future.done() for future in early)
        late = sessions[-1].call(nothing, barrier)
        for future in [*early, late]:
            assert future.result(LIVENESS_S) is nothing
        check_sums(sessions, 20)
        floats = np.tile(np.arange(20, dtype=np.float32), (66, 1))
        for future in [session.allreduce(array) for session, array in zip(sessions, floats, strict=True)]:
            future.result(LIVENESS_S)
        assert (floats == 66 * np.arange(20)).all()
        close(sessions)
