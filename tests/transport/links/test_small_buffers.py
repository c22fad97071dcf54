"""Receive buffers smaller than the windows: windows shrink, alike on all ranks, and it is said (C17)."""

import itertools
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from switchagg.codecs import SPLIT
from switchagg.controller.admission import Controller
from switchagg.join import Join
from switchagg.membership import JobAdmitted
from transport.links.udp_link import UdpLink
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

LIVENESS_S = 120.0
SMALL = 212_992
"""net.core.rmem_max of most distributions: 184 packets of MTU size."""


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = UdpLink._size_buffer

    def size_buffer(self: UdpLink, force: int, ordinary: int, size_bytes: int) -> int:
        receiving = ordinary == socket.SO_RCVBUF
        return asked(self, force, ordinary, min(size_bytes, SMALL) if receiving else size_bytes)

    monkeypatch.setattr(UdpLink, "_size_buffer", size_buffer)


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def daemon(small_buffers: None, log: list[str]) -> Iterator[SwitchDaemon]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0)), log=log.append) as running:
        yield running


def test_windows_that_would_overrun_the_switch_shrink_and_hardly_anything_is_resent(
    daemon: SwitchDaemon, log: list[str]
) -> None:
    workers, elements = 8, 200_000
    join = partial(SwitchSession.join, daemon.control_endpoint, "job")
    with ThreadPoolExecutor(workers) as pool:
        joined = pool.map(lambda rank: join(rank, workers, JoinOptions(call_timeout_s=LIVENESS_S)), range(workers))
        with pytest.warns(UserWarning, match=r"sysctl -w net\.core\.rmem_max"):
            sessions = list(joined)
    calls = [[session.allreduce(np.full(elements, 1, np.int32)) for _ in range(4)] for session in sessions]
    for future in itertools.chain(*calls):
        assert set(future.result(LIVENESS_S)) == {workers}
    assert [stream.window_slots for stream in sessions[0].job.streams] == [11, 11]
    job = sessions[0].job
    first = 4 * workers * -(-elements // SPLIT.for_workers(workers).row_values(np.dtype(np.int32), job.room))
    sent = sum(session.counters["link_sent_datagrams"] for session in sessions)
    assert sent < 1.1 * first
    assert any("the switch's receive buffer holds 184 packets" in line for line in log)
    for session in sessions:
        session.close()


def admitted(held_by_switch: int, *held: int, **changes: object) -> JobAdmitted:
    """Of workers whose receive buffers hold so many packets, with 2 x 256 slots."""
    controller = Controller(4096, 360, lambda: 1, packets_held=lambda elements: held_by_switch)
    for rank, packets in enumerate(held):
        address = (f"10.0.0.{rank + 1}", 9)
        controller.join(
            Join(
                job="j",
                rank=rank,
                workers=len(held),
                elements=360,
                address=address,
                incarnation=rank,
                timeout_ns=10**9,
                packets_held=packets,
                **{"streams": 2, "window_slots": 256} | changes,
            ),
            0,  # type: ignore[arg-type]
        )
    event = controller.next_event()
    assert isinstance(event, JobAdmitted)
    return event


@pytest.mark.parametrize(
    ("held", "windows", "whose"),
    [
        ((0, 0, 0), [256, 256], ""),
        ((1024, 0, 512), [256, 256], ""),
        ((400, 0, 0), [100, 100], "the switch's receive buffer holds 400 packets"),
        ((1024, 0, 64), [32, 32], "that of rank 1 at 10.0.0.2 holds 64 packets"),
        ((1, 0, 0), [1, 1], "the switch's"),
    ],
)
def test_c17_the_smallest_buffer_decides(held: tuple[int, ...], windows: list[int], whose: str) -> None:
    event = admitted(*held)
    assert [stream.window_slots for stream in event.job.streams] == windows
    assert whose in event.narrowed
    assert bool(event.narrowed) == bool(whose)


def test_c17_windows_shrink_in_proportion() -> None:
    event = admitted(120, 0, 0, window_slots=(100, 20), priorities=(7, 0))
    assert [stream.window_slots for stream in event.job.streams] == [50, 10]
    assert [stream.first_slot for stream in event.job.streams] == [0, 50]


def test_a_buffer_that_was_granted_holds_enough(small_buffers: None) -> None:
    made: list[Callable[..., UdpLink]] = [UdpLink, partial(UdpLink, receive_buffer_bytes=SMALL)]
    links = [make(("127.0.0.1", 0)) for make in made]
    assert [link.packets_held(1460) for link in links] == [184, 0]
    for link in links:
        link.close()
