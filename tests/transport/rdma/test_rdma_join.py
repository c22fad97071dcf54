"""Joining a switch over RDMA: how queue pairs are matched, and what is refused, with how to fix it (R3)."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from switchagg.errors import JobError, SwitchaggError
from switchagg.join import Join, QueuePairEnd
from switchagg.native import library
from transport.control import control_messages
from transport.control.control_client import ControlClient
from transport.control.queue_pair_ends import QueuePairEnds
from transport.links.udp_link import UdpLink
from transport.rdma.provider import RdmaOptions
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.switch.impairments import Impairments
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

CONTROL = "tcp://127.0.0.1:0"
HOST = f"127.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
"""Addresses of this process alone: on loopback all of 127/8 is ours, and tests run side by side."""


def request(rank: int, queue_pair: QueuePairEnd | None, elements: int = 251, host: str = f"{HOST}.77") -> Join:
    return Join(
        job="job",
        rank=rank,
        workers=1,
        elements=elements,
        streams=1,
        window_slots=8,
        address=(host, 4791),
        incarnation=77 + rank,
        timeout_ns=5_000_000_000,
        queue_pair=queue_pair,
    )


def answer_to(switch: str, join: Join) -> control_messages.Admitted:
    client = ControlClient(switch, join, lambda gone: None, lambda dead, reason: None, dict)
    client.start()
    try:
        return client.admitted.result(20)
    finally:
        client.leave([], "", 1.0)
        client.close()


def test_a_join_over_rdma_is_answered_with_the_switch_s_queue_pairs() -> None:
    with SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.76", 4791), link="rdma")) as daemon:
        admitted = answer_to(daemon.control_endpoint, request(0, QueuePairEnd(5, 6, 7, 8)))
        assert (admitted.host, admitted.port) == (f"{HOST}.76", 4791)
        assert admitted.queue_pairs == [QueuePairEnd(0x800000 | admitted.job_id, 0, admitted.generation, 0)]


def test_links_do_not_mix() -> None:
    with SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.75", 4791), link="rdma")) as daemon:
        with pytest.raises(JobError, match="this switch serves RDMA only: join it over the link rdma"):
            SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(timeout_s=10))
        for queue_pair, elements, words in (
            (QueuePairEnd(1 << 24, 0, 0, 0), 251, "queue pair 16777216: 24 bits"),
            (QueuePairEnd(1, 0, 1 << 32, 0), 251, "rkey 4294967296: 32 bits"),
            (QueuePairEnd(1, 0, 0, 0), 360, "elements 360: over RDMA a frame fills the path MTU"),
        ):
            with pytest.raises(JobError, match=words):
                answer_to(daemon.control_endpoint, request(0, queue_pair, elements))
    words = "this switch serves no RDMA: start one with `switchagg switch --link rdma`"
    with SwitchDaemon(DaemonOptions(CONTROL, ("127.0.0.1", 0))) as daemon, pytest.raises(JobError, match=words):
        answer_to(daemon.control_endpoint, request(0, QueuePairEnd(1, 0, 0, 0)))


def test_ranks_may_share_an_address_but_no_queue_pair() -> None:
    def end(number: int) -> QueuePairEnd:
        return QueuePairEnd(number, 0, 0, 0)

    assert request(0, end(1)).contradiction(request(1, end(2))) == ""
    assert f"both give the address {HOST}.77:4791 and queue pair 1" in request(0, end(1)).contradiction(
        request(1, end(1))
    )
    assert request(0, None).contradiction(request(1, None)).endswith(f"both give the address {HOST}.77:4791")
    assert QueuePairEnd(1, 1 << 24, 0, 0).fault() == "PSN 16777216: 24 bits"


def test_options_that_a_switch_over_rdma_lacks_are_refused() -> None:
    for options, words in (
        ({"bind_data": ("0.0.0.0", 4791)}, "needs an address of its own.* give --data HOST:4791"),
        ({"bind_data": ("::", 4791)}, "needs an address of its own.* give --data HOST:4791"),
        ({"dataplane": "reference"}, "the link rdma needs the data plane native, not reference"),
        ({"impairments": Impairments()}, "the link rdma has no impairments of its own"),
        ({"link": "smoke"}, "link 'smoke' is unknown; allowed: zeromq, udp, rdma"),
        ({"packets": 0}, "packets 0: a message has 1 to 128"),
    ):
        with pytest.raises(SwitchaggError, match=words):
            SwitchDaemon(DaemonOptions(CONTROL, **{"bind_data": (f"{HOST}.74", 4791), "link": "rdma", **options}))  # type: ignore[arg-type]
    taken = pytest.raises(SwitchaggError, match="RoCEv2 has port 4791 alone")
    with SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.74", 4791), link="rdma")), taken:
        SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.74", 4791), link="rdma"))


@pytest.mark.parametrize("core", ["native", "python"])
def test_sessions_allreduce_over_rdma(core: str) -> None:
    """From `SwitchSession.join` to the sum; two ranks at one address have ports of their own."""
    with (
        SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.9", 4791), link="rdma")) as daemon,
        ThreadPoolExecutor(2) as pool,
    ):

        def rank_of(rank: int) -> SwitchSession:
            how = {"link": "rdma", "core": core, "bind": f"{HOST}.10", "rdma": RdmaOptions(packets=4)}
            return SwitchSession.join(daemon.control_endpoint, "job", rank, 2, JoinOptions(timeout_s=20, **how))  # type: ignore[arg-type]

        sessions = list(pool.map(rank_of, range(2)))
        arrays = [np.arange(50_000, dtype=np.int32) * (rank + 1) for rank in range(2)]
        floats = [np.full(1000, rank + 0.5, np.float32) for rank in range(2)]
        begun = []  # streams end in any order
        for session, ints, reals in zip(sessions, arrays, floats, strict=True):
            assert (session.core, session.job.elements) == (core, 251)
            begun += [session.allreduce(ints), session.allreduce(reals)]
        futures = [session.allreduce(np.ones(10, np.int64)) for session in sessions]
        assert [future.result(30).tolist() for future in futures] == [[2] * 10] * 2
        for future in begun:
            future.result(30)
        for session in sessions:
            assert session.counters["messages_sent"] < session.counters["sent"]
            assert session.status()["data_counters"]["drop_icrc"] == 0
            session.close()
        assert all(np.array_equal(ints, np.arange(50_000) * 3) for ints in arrays)
        assert all(np.array_equal(reals, np.full(1000, 2.0)) for reals in floats)


def test_a_switch_that_names_no_queue_pairs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuePairEnds, "of_switch", lambda self, job: [])
    where = {"link": "rdma", "bind": f"{HOST}.11", "timeout_s": 10}
    older = pytest.raises(JobError, match="has no RDMA queue pair for each rank")
    with SwitchDaemon(DaemonOptions(CONTROL, (f"{HOST}.9", 4791), link="rdma")) as daemon, older:
        SwitchSession.join(daemon.control_endpoint, "job", 0, 1, JoinOptions(**where))  # type: ignore[arg-type]
    with contextlib.closing(UdpLink((f"{HOST}.11", 4791))):
        pass  # the worker's port is free again


def test_impossible_options_are_refused_before_joining() -> None:
    for options, words in (
        ({"elements": 360}, "elements 360: over RDMA a frame fills the path MTU"),
        ({"rdma": RdmaOptions(packets=129)}, "packets 129: a message has 1 to 128"),
        ({"rdma": RdmaOptions(provider="verbs")}, "no RDMA hardware|no RDMA device"),
        ({"rdma": RdmaOptions(provider="smoke")}, "RDMA provider 'smoke' is unknown; allowed: soft, verbs"),
        ({"link": "smoke"}, "link 'smoke' is unknown; allowed: zeromq, udp, rdma"),
        ({"bind": "203.0.113.7"}, "203.0.113.7"),
    ):
        with pytest.raises(JobError, match=words):
            SwitchSession.join("tcp://127.0.0.1:1", "job", 0, 1, JoinOptions(**{"link": "rdma", **options}))  # type: ignore[arg-type]
