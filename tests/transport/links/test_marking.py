"""What a stream's class does to its packets: TOS and SO_PRIORITY of every bundle, at the worker and at the switch."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switchagg.calls.array_calls import array_call
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import AggregationFailed
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.priority import tos_of
from switchagg.wire import Op, Packet, decode, encode, frame_bytes
from transport.links import udp_link
from transport.links.udp_link import UdpLink
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import CommandLoop, SwitchLoop
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import CallLoop, WorkerLoop

ELEMENTS = 8
WINDOW = 12
SOON_S = 120.0


class Switch:
    """A plain socket that notes the stream and the TOS of every datagram."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.socket.settimeout(SOON_S)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        else:
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self.address = self.socket.getsockname()[:2]

    def receive(self) -> tuple[bytes, int]:
        data, ancillary, _, _ = self.socket.recvmsg(2048, socket.CMSG_SPACE(4))
        (value,) = [int.from_bytes(raw[:1], "little") for _, _, raw in ancillary]
        return data, value


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    yield made
    made.socket.close()


def job_of(*priorities: int) -> JobConfig:
    streams = tuple(StreamConfig(k * WINDOW, WINDOW, priority) for k, priority in enumerate(priorities))
    return JobConfig(1, 1, 1, ELEMENTS, streams, rto_initial_ns=10**10, rto_max_ns=10**10)


def loop_of(core: str, link: UdpLink, job: JobConfig, switch: Switch) -> CallLoop:
    if core == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    return (NativeWorkerLoop if core == "native" else WorkerLoop)(link, job, 0, switch.address)


def submit(core: str, loop: CallLoop, job: JobConfig, stream: int, chunks: int) -> "Future[Any]":
    array = np.zeros(ELEMENTS * chunks, np.int32)
    call = array_call(array, "sum", job)
    return loop.submit(stream, call, array)


@pytest.mark.parametrize("credit_bytes", [None, 4096])
@pytest.mark.parametrize("core", ["native", "python"])
def test_w10_every_packet_carries_its_streams_class(switch: Switch, core: str, credit_bytes: int | None) -> None:
    job = job_of(7, 0, 3, 9, -4)
    loop = loop_of(core, UdpLink(("127.0.0.1", 0), tos=0x2A, credit_bytes=credit_bytes), job, switch)
    futures = [submit(core, loop, job, stream, 10) for stream in range(5)]
    seen = [switch.receive() for _ in range(50)]
    found: dict[int, set[int]] = {}
    for data, tos in seen:
        assert len(data) == frame_bytes(ELEMENTS)
        found.setdefault(data[12], set()).add(tos)
    # ECN bits stay; best effort keeps what the socket says
    assert found == {0: {0x2A}, 1: {0xE2}, 2: {0x82}, 3: {0x2A}, 4: {0xE2}}
    loop.fail(AggregationFailed("enough", job=1, generation=1))
    assert all(isinstance(future.exception(SOON_S), AggregationFailed) for future in futures)
    loop.close()
    assert loop.counters["link_sent_datagrams"] == 50


@pytest.mark.parametrize("core", ["native", "python"])
def test_a_job_without_classes_sends_with_the_socket_s_tos(switch: Switch, core: str) -> None:
    job = job_of(7, 7)
    loop = loop_of(core, UdpLink(("127.0.0.1", 0), tos=0xB8), job, switch)
    for stream in range(2):
        submit(core, loop, job, stream, 2)
    assert {switch.receive()[1] for _ in range(4)} == {0xBA}  # ECT(0) (G5)
    loop.close()


@pytest.mark.parametrize("gso", [None, False])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_send_may_have_a_tos_of_its_own(family: int, gso: bool | None) -> None:
    try:
        made = Switch(family)
    except OSError as error:
        pytest.skip(f"no IPv6 on the loopback: {error}")
    link = UdpLink((made.address[0], 0), gso=gso, tos=0x20)
    rows = np.zeros((3, 64), np.uint8)
    assert link.send(rows, made.address, 0xE1) == 3
    assert link.send(rows, made.address) == 3
    assert [made.receive()[1] for _ in range(6)] == [0xE1] * 3 + [0x20] * 3
    assert link.gso_fallback == ""
    link.close()
    made.socket.close()


def test_so_priority_is_set_after_the_tos_and_only_where_the_kernel_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (True, False):
        monkeypatch.setattr(udp_link, "takes_socket_priority", lambda known=known: known)
        link = UdpLink(("127.0.0.1", 0))
        controls = link._controls(1, 64, 0xC3)
        said = [(socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=i", 6))]
        assert controls == [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 0xC3))] + said * known
        assert link.socket_priority is known
        link.close()


def test_the_python_core_asks_for_no_frames_while_the_credit_is_used(switch: Switch) -> None:
    """What it asked for could not be overtaken any more."""

    class Full(UdpLink):
        full = True
        asked = threading.Semaphore(0)

        def has_room(self) -> bool:
            self.asked.release()
            return not self.full

    link = Full(("127.0.0.1", 0), credit_bytes=4096)
    job = job_of(7)
    loop = WorkerLoop(link, job, 0, switch.address)
    array = np.zeros(ELEMENTS, np.int32)
    loop.submit(0, array_call(array, "sum", job), array)
    for _ in range(3):  # the third time, the turn of the second is over
        assert Full.asked.acquire(timeout=SOON_S)
    assert loop.counters["sent"] == 0
    link.full = False
    assert len(switch.receive()[0]) == frame_bytes(ELEMENTS)
    loop.close()


def test_an_impossible_credit_is_refused() -> None:
    with pytest.raises(ValueError, match="credit_bytes 100: 4096 to"):
        UdpLink(("127.0.0.1", 0), credit_bytes=100)


def test_the_credit_is_the_socket_s_send_buffer() -> None:
    link = UdpLink(("127.0.0.1", 0), credit_bytes=50_000)
    assert link.credit_bytes == link.send_buffer_bytes == 50_000
    assert link.has_room()
    link.close()
    assert UdpLink(("127.0.0.1", 0)).credit_bytes == 0


def hub_of(plane: str, link: UdpLink, slots: int) -> CommandLoop[Any]:
    if plane == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    made = NativeSwitchLoop if plane == "native" else SwitchLoop
    return made(link, DATAPLANES[plane](slots, ELEMENTS))  # type: ignore[arg-type]


@pytest.mark.parametrize("plane", ["native", "reference"])
def test_s6_results_carry_the_class_of_their_stream(plane: str) -> None:
    job = job_of(7, 0, 3)
    worker = Switch()
    link = UdpLink(("127.0.0.1", 0))
    hub = hub_of(plane, link, 3 * WINDOW)
    hub.start()
    plain = JobConfig(2, 1, 1, ELEMENTS, (StreamConfig(3 * WINDOW - 1, 1),))
    short = replace(job.streams[2], window_slots=WINDOW - 1)
    job = replace(job, streams=(*job.streams[:2], short))
    hub.admit(job, [worker.address])
    hub.admit(plain, [worker.address])
    found = []
    for config, stream in ((job, 0), (job, 1), (job, 2), (plain, 0), (job, 1)):
        slot, _ = config.place(stream, 0)
        packet = Packet(config.job_id, 1, stream, 0, Op.SUM, slot, 0, 0, np.zeros(ELEMENTS, np.int32))
        tos = tos_of(config.streams[stream].priority)
        worker.socket.sendmsg(
            [encode(packet)], [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", tos))], 0, link.address
        )
        data, tos = worker.receive()
        found.append((data[12], tos))
    assert found == [(0, 0), (1, 0xE0), (2, 0x80), (0, 0), (1, 0xE0)]
    hub.stop()
    worker.socket.close()


@pytest.mark.parametrize("plane", ["native", "reference"])
def test_g2_a_contribution_that_met_congestion_marks_the_result(plane: str) -> None:
    job = JobConfig(1, 1, 2, ELEMENTS, (StreamConfig(0, 2),))
    link, workers = UdpLink(("127.0.0.1", 0)), (Switch(), Switch())
    hub = hub_of(plane, link, 2)
    hub.start()
    hub.admit(job, [worker.address for worker in workers])
    found = []
    for chunk, bits in enumerate([(2, 2), (3, 2), (2, 3), (0, 0)]):
        slot, version = job.place(0, chunk)
        for rank, tos in enumerate(bits):
            packet = Packet(1, 1, 0, rank, Op.SUM, slot, version, chunk, np.zeros(ELEMENTS, np.int32))
            said = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 0x20 | tos))]
            workers[rank].socket.sendmsg([encode(packet)], said, 0, link.address)
            time.sleep(0.01)  # the second completes the chunk
        results = [worker.receive() for worker in workers]
        assert results[0] == results[1]
        found.append((decode(results[0][0]).marked, results[0][1]))
    assert found == [(False, 0x22), (True, 0x22), (True, 0x22), (False, 0x20)]
    hub.stop()
    for worker in workers:
        worker.socket.close()


@pytest.mark.parametrize(("core", "family"), [("native", 4), ("python", 4), ("python", 6)])
def test_g8_a_worker_tells_all_that_results_met_congestion_on_its_link(core: str, family: int) -> None:
    try:
        switch = Switch(socket.AF_INET6 if family == 6 else socket.AF_INET)
    except OSError as error:
        pytest.skip(f"no IPv6 on the loopback: {error}")
    level, kind, _ = udp_link.TOS[switch.socket.family]
    job = job_of(7)
    loop = loop_of(core, UdpLink((switch.address[0], 0)), job, switch)
    future = submit(core, loop, job, 0, 2 * WINDOW)
    marked = []
    for chunk in range(2 * WINDOW):
        (data, tos), to = switch.receive(), loop._link.address  # type: ignore[attr-defined]
        packet = decode(data)
        assert (packet.chunk, tos) == (chunk, 2)  # ECT(0) (G5)
        marked.append(packet.marked)
        bits = 3 if chunk in (1, 2, 7) else 2
        result = encode(replace(packet, result=True, marked=False))
        switch.socket.sendmsg([result], [(level, kind, struct.pack("=i", bits))], 0, to)
    future.result(SOON_S)
    loop.close()
    switch.socket.close()
    assert marked[:WINDOW] == [False] * WINDOW
    assert sum(marked) == loop.counters["ecn_marked"] == 3
