"""Switch loops: what reaches the data plane, what leaves for whom, and what a full link or a bad caller changes.

What SwitchLoop does turn by turn is seen over a scripted link; what both loops owe those who command them, over UDP.
"""

import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataplane_names import WITHOUT_P4
from scripted_link import ScriptedLink
from waiting import until

import transport.switch.switch_loop
from switchagg.aggregator import Parent, SlotView
from switchagg.dataplane.contract import Output
from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import JobConfig, StreamConfig
from switchagg.native import library
from switchagg.wire import Bundle, Op, Packet, decode, encode
from transport.links.link import Address, LinkClosed
from transport.links.udp_link import UdpLink
from transport.switch.native_switch_loop import NativeSwitchLoop
from transport.switch.switch_loop import CommandLoop, SwitchLoop

LOOPBACK = ("127.0.0.1", 0)
SENT = ("gso", "one by one", "without checksums")
LIVENESS_S = 120.0
JOB = JobConfig(job_id=1, generation=1, workers=2, elements=4, streams=(StreamConfig(0, 8),))


class EchoPlane:
    """Answers every row with itself, to all ports of job 1 if it starts with 1, to its sender else."""

    name = "echo"

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.processed: list[tuple[bytes, int]] = []
        self.threads: set[int] = set()
        self.jobs: dict[int, tuple[int, ...]] = {}

    def admit(self, job: JobConfig, ports: Sequence[int], parent: Parent | None = None) -> None:
        self.threads.add(threading.get_ident())
        if job.elements > 100:
            raise JobError("too many elements")
        self.jobs[job.job_id] = tuple(ports)

    def evict(self, job_id: int) -> None:
        self.threads.add(threading.get_ident())
        self.jobs.pop(job_id, None)

    def seen(self, slot: int, version: int) -> SlotView:
        self.threads.add(threading.get_ident())
        if slot == 99:
            raise KeyError(slot)
        return SlotView(slot, (version,))

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        self.threads.add(threading.get_ident())
        self.processed.append((bundle.tobytes(), port))
        if bundle.size and bundle[0, 0] == 255:
            raise ZeroDivisionError("a bug in the data plane")
        frames = bundle.copy()
        return [
            Output(frames[row : row + 1], self.jobs[1] if frames.size and frames[row, 0] == 1 else (port,))
            for row in range(len(frames))
        ]


A, B, C = ("a", 1), ("b", 2), ("c", 3)


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedLink, EchoPlane, SwitchLoop]]:
    link, plane = ScriptedLink(), EchoPlane()
    loop = SwitchLoop(link, plane, queue_bytes_max=100)
    loop.start()
    loop.admit(JOB, [A, B])
    yield link, plane, loop
    loop.stop()


def rows(*values: int, size: int = 10) -> Bundle:
    return np.repeat(np.array(values, np.uint8)[:, np.newaxis], size, axis=1)


def test_a_worker_is_known_by_its_address(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, loop = scripted
    link.deliver((rows(5), B), (rows(6), A), (rows(7, 7), C))
    until(lambda: len(link.sent) == 2)
    assert plane.processed == [(bytes([5] * 10), plane.jobs[1][1]), (bytes([6] * 10), plane.jobs[1][0])]
    assert link.sent == [(B, [bytes([5] * 10)]), (A, [bytes([6] * 10)])]
    assert loop.counters()["drop_unknown_sender"] == 2


def test_an_iteration_handles_one_bundle_per_port_and_sends_one_per_worker(
    scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop],
) -> None:
    link, plane, _ = scripted
    link.deliver((rows(1), A), (rows(1, 1), B), (rows(1, 1), A), (rows(1, size=6), A))
    until(lambda: len(link.sent) == 4)
    assert [(len(data), port) for data, port in plane.processed] == [(30, 0), (20, 1), (6, 0)]
    assert [(to, list(map(len, data))) for to, data in link.sent] == [(A, [10] * 5), (B, [10] * 5), (A, [6]), (B, [6])]


def test_results_keep_their_order_whatever_their_tos(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, _, _ = scripted
    link.deliver(*((rows(value), A) for value in range(10, 18)), tos=(2, 3, 3, 2))
    until(lambda: len(link.rows_to(A)) == 8)
    assert [row[0] for row in link.rows_to(A)] == list(range(10, 18))
    assert [len(sent) for _, sent in link.sent] == [1, 2, 2, 2, 1]


def test_empty_datagrams_reach_the_data_plane(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, loop = scripted
    link.room = 0
    link.deliver((rows(0, 0, 0, size=0), A))
    until(lambda: len(plane.processed) == 1)
    link.room = 100
    link.wake()
    until(lambda: link.rows_to(A) == [b""] * 3)
    assert loop.counters()["drop_queue_full"] == 0


def test_a_full_link_keeps_a_bounded_queue_and_drops_the_tail(
    scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop],
) -> None:
    link, _, loop = scripted
    link.room = 3
    link.deliver((rows(*range(20, 40)), A))  # 20 rows of 10 bytes: 3 go, 10 wait, 7 are dropped
    until(lambda: loop.counters()["drop_queue_full"] == 7)
    link.deliver((rows(40), A))
    until(lambda: loop.counters()["drop_queue_full"] == 8)
    link.deliver((rows(60, 61), B))  # another worker's queue has room of its own
    link.room = 1 << 30
    link.wake()
    until(lambda: len(link.rows_to(B)) == 2)
    assert [row[0] for row in link.rows_to(A)] == list(range(20, 33))
    assert [row[0] for row in link.rows_to(B)] == [60, 61]
    link.room = 0  # the queue is as long as it was
    link.deliver((rows(*range(80, 100)), A))
    until(lambda: loop.counters()["drop_queue_full"] == 18)
    link.room = 1 << 30
    link.wake()
    until(lambda: link.rows_to(A)[-1][0] == 89)


def test_queued_results_are_not_reordered(
    scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, _, _ = scripted
    rooms, send = deque([0]), link.send

    def full_once(bundle: Bundle, to: Address, tos: int | None = None) -> int:
        link.room = rooms.popleft() if rooms else 1 << 30
        return send(bundle, to)

    monkeypatch.setattr(link, "send", full_once)
    link.deliver((rows(20), A), (rows(21, size=6), A), (rows(22), B))
    until(lambda: len(link.sent) == 3)
    assert [row[0] for row in link.rows_to(A)] == [20, 21]


def test_waiting_workers_are_served_round_robin(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, _ = scripted
    link.room = 0
    for value in (20, 21):
        link.deliver((rows(value), A))
        link.deliver((rows(value), B))
    until(lambda: len(plane.processed) == 4)
    until(lambda: not link.arrivals)
    for _ in range(4):
        link.room = 1
        link.wake()
        until(lambda: link.room == 0)
    assert [(to, data[0][0]) for to, data in link.sent] == [(A, 20), (B, 20), (A, 21), (B, 21)]


def test_an_evicted_job_leaves_no_queue_and_no_port(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, loop = scripted
    link.room = 0
    link.deliver((rows(20, 21), A))
    until(lambda: len(plane.processed) == 1)
    loop.evict(1)
    loop.evict(77)
    link.room = 100
    link.deliver((rows(22), A))
    until(lambda: loop.counters()["drop_unknown_sender"] == 1)
    assert link.sent == []
    loop.admit(JOB, [C, A])
    assert sorted(plane.jobs[1]) == [0, 1]  # numbers are used again


def test_jobs_may_share_an_address_and_each_keeps_it(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, loop = scripted
    loop.admit(replace(JOB, job_id=2), [B, C])
    assert plane.jobs[2][0] == plane.jobs[1][1]
    loop.evict(1)
    link.deliver((rows(9), B), (rows(9), A))
    until(lambda: link.rows_to(B) == [bytes([9] * 10)])
    assert loop.counters()["drop_unknown_sender"] == 1


def test_a_new_generation_may_have_another_address(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, _, loop = scripted
    loop.admit(replace(JOB, generation=2), [C, B])
    link.deliver((rows(9), A), (rows(8), C), (rows(7), B))
    until(lambda: len(link.sent) == 2)
    assert link.sent == [(C, [bytes([8] * 10)]), (B, [bytes([7] * 10)])]
    assert loop.counters()["drop_unknown_sender"] == 1


def test_commands_run_in_the_loop_s_thread(scripted: tuple[ScriptedLink, EchoPlane, SwitchLoop]) -> None:
    link, plane, loop = scripted
    assert loop.seen(3, 1) == SlotView(3, (1,))
    with pytest.raises(KeyError):
        loop.seen(99, 0)
    link.deliver((rows(9), A))
    until(lambda: len(link.sent) == 1)
    loop.evict(1)
    assert plane.threads == {loop._thread.ident}
    assert loop.counters()["link_sent_rows"] == 0


def test_a_bug_in_the_data_plane_is_not_hidden() -> None:
    failures: list[BaseException] = []
    link = ScriptedLink()
    loop = SwitchLoop(link, EchoPlane(), on_failure=failures.append)
    loop.start()
    loop.admit(JOB, [A, B])
    link.deliver((rows(255), A))
    until(lambda: bool(failures))
    assert isinstance(loop.failure, ZeroDivisionError)
    assert failures == [loop.failure]
    assert link.closed
    with pytest.raises(SwitchaggError) as caught:
        loop.counters()
    assert caught.value.__cause__ is loop.failure
    loop.stop()


def test_a_command_is_answered_or_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    link, plane, entered, hold = ScriptedLink(), EchoPlane(), threading.Event(), threading.Event()

    def stuck() -> list[tuple[Bundle, Address]]:
        entered.set()
        hold.wait(LIVENESS_S)
        return []

    loop = SwitchLoop(link, plane)
    with pytest.raises(SwitchaggError, match="running"):
        loop.evict(1)
    monkeypatch.setattr(transport.switch.switch_loop, "ANSWER_S", 0.05)
    monkeypatch.setattr(link, "receive", stuck)
    loop.start()
    assert entered.wait(LIVENESS_S)
    with pytest.raises(SwitchaggError, match="answer"):
        loop.admit(JOB, [A, B])
    hold.set()
    monkeypatch.setattr(transport.switch.switch_loop, "ANSWER_S", LIVENESS_S)
    assert loop.counters()["drop_unknown_sender"] == 0
    assert plane.jobs == {}  # what was given up is not done later

    loop.admit(JOB, [A, B])
    entered.clear()
    hold.clear()
    link.wake()
    assert entered.wait(LIVENESS_S)
    monkeypatch.setattr(transport.switch.switch_loop, "ANSWER_S", 0.05)
    with pytest.raises(SwitchaggError, match="answer"):
        loop.evict(1)
    hold.set()
    monkeypatch.setattr(transport.switch.switch_loop, "ANSWER_S", LIVENESS_S)
    assert loop.counters()["drop_unknown_sender"] == 0
    assert plane.jobs == {}  # but an eviction is: the job's slots are given away

    entered.clear()
    hold.clear()
    link.wake()
    assert entered.wait(LIVENESS_S)
    monkeypatch.setattr(transport.switch.switch_loop, "ANSWER_S", 0.05)
    with pytest.raises(SwitchaggError, match="did not end"):
        loop.stop()
    hold.set()
    monkeypatch.undo()
    loop.stop()


# ---- both loops, over UDP

LOOPS = {"python": "reference", "native": "native"}
"""loop -> data plane."""


def make_loop(
    name: str, link: UdpLink, slots: int = 16, on_failure: Callable[[BaseException], None] | None = None
) -> CommandLoop[Any]:
    if name == "python":
        return SwitchLoop(link, DATAPLANES["reference"](slots, 4), on_failure=on_failure)
    plane = DATAPLANES["native"](slots, 4)
    assert isinstance(plane, NativePlane)
    return NativeSwitchLoop(link, plane, on_failure=on_failure)


@pytest.fixture(params=LOOPS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and library.missing():
        pytest.skip(f"native switch loop: {library.missing()}")
    name: str = request.param
    return name


class Live:
    """A running loop on UDP, three links to talk to it, and a job of the first two."""

    def __init__(self, kind: str) -> None:
        link = UdpLink(LOOPBACK)
        self.address = link.address
        self.loop = make_loop(kind, link)
        self.loop.start()
        self.peers = [UdpLink(LOOPBACK) for _ in range(3)]
        self.addresses = [peer.address for peer in self.peers]
        self.loop.admit(JOB, self.addresses[:2])

    def contribute(self, peer: int, rank: int, chunk: int, generation: int = 1) -> None:
        """Send a rank's packet from a peer, and wait until the switch has had it."""
        packet = contribution(rank, chunk, generation)
        before = self.loop.counters()["link_received_datagrams"]
        self.peers[peer].send(np.frombuffer(encode(packet), np.uint8)[np.newaxis], self.address)
        until(lambda: self.loop.counters()["link_received_datagrams"] > before)

    def results(self, peer: int) -> list[Packet]:
        """What has come for a peer; counters() has waited for the turn that sent it."""
        self.loop.counters()
        return [decode(row.tobytes()) for bundle, *_ in self.peers[peer].receive() for row in bundle]

    def close(self) -> None:
        self.loop.stop()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def live(kind: str) -> Iterator[Live]:
    one = Live(kind)
    yield one
    one.close()


def test_packets_from_unknown_or_other_ranks_addresses_change_nothing(live: Live) -> None:
    live.contribute(2, 0, 0)
    live.peers[2].send(np.zeros((5, 36), np.uint8), live.address)
    until(lambda: live.loop.counters()["drop_unknown_sender"] == 6)
    live.contribute(1, 0, 0)
    assert live.loop.counters()["drop_port"] == 1
    live.contribute(0, 0, 0)
    live.contribute(1, 1, 0)
    assert [packet.chunk for packet in live.results(0)] == [packet.chunk for packet in live.results(1)] == [0]
    assert live.results(2) == []


def test_each_worker_gets_its_reply_alone(live: Live) -> None:
    for rank in (0, 1, 0):
        live.contribute(rank, rank, 0)
    assert (len(live.results(0)), len(live.results(1))) == (2, 1)


def test_an_evicted_job_is_gone_and_its_ports_are_used_again(live: Live) -> None:
    live.contribute(0, 0, 0)
    live.loop.evict(1)
    live.loop.evict(77)
    live.contribute(0, 0, 0)
    assert live.loop.counters()["drop_unknown_sender"] == 1
    with pytest.raises(KeyError):
        live.loop.seen(0, 0)
    live.loop.admit(JOB, [live.addresses[2], live.addresses[0]])
    assert sorted(live.loop._ports) == [0, 1]
    live.contribute(2, 0, 0)
    live.contribute(0, 1, 0)
    assert (len(live.results(0)), len(live.results(1)), len(live.results(2))) == (1, 0, 1)


def test_two_jobs_may_share_an_address(live: Live) -> None:
    other = replace(JOB, job_id=2, streams=(StreamConfig(8, 8),))
    live.loop.admit(other, [live.addresses[1], live.addresses[2]])
    live.loop.evict(1)
    packet = replace(contribution(0, 0), job=2, slot=8)
    live.peers[1].send(np.frombuffer(encode(packet), np.uint8)[np.newaxis], live.address)
    until(lambda: live.loop.seen(8, 0).ranks == (0,))
    live.contribute(0, 0, 0)
    assert live.loop.counters()["drop_unknown_sender"] == 1


def test_the_next_generation_may_have_other_addresses(live: Live) -> None:
    live.loop.admit(replace(JOB, generation=2), [live.addresses[2], live.addresses[1]])
    live.contribute(0, 0, 0, generation=2)
    assert live.loop.counters()["drop_unknown_sender"] == 1
    live.contribute(1, 1, 0, generation=2)
    live.contribute(2, 0, 0, generation=2)
    assert (len(live.results(0)), len(live.results(1)), len(live.results(2))) == (0, 1, 1)


def test_refused_jobs_leave_no_port(live: Live) -> None:
    a, b, c = live.addresses
    for addresses in ([], [a, a], [a, b, c]):
        with pytest.raises(JobError, match=r"2 workers|different addresses"):
            live.loop.admit(replace(JOB, job_id=5), addresses)
    with pytest.raises(JobError):
        live.loop.admit(replace(JOB, job_id=5, elements=101), [b, c])
    live.contribute(2, 0, 0)
    assert live.loop.counters()["drop_unknown_sender"] == 1
    assert sorted(live.loop._ports) == [0, 1]


def test_the_state_of_slots_can_be_queried(live: Live) -> None:
    live.contribute(1, 1, 3)
    assert live.loop.seen(3, 0) == SlotView(3, (1,))
    assert live.loop.slots_of(JOB) == {(3, 0): SlotView(3, (1,))}


def test_an_error_in_the_loop_ends_it_and_is_reported(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    link = UdpLink(LOOPBACK)
    loop = make_loop(kind, link, on_failure=failures.append)

    def crash() -> None:
        raise ZeroDivisionError("a bug")

    loop.start()
    loop.admit(JOB, [("127.0.0.1", 9), ("127.0.0.1", 10)])
    monkeypatch.setattr(loop, "_run_once", crash)
    link.wake()
    until(lambda: bool(failures))
    assert isinstance(loop.failure, ZeroDivisionError)
    with pytest.raises(LinkClosed):
        link.fileno()
    with pytest.raises(SwitchaggError) as caught:
        loop.evict(1)
    assert caught.value.__cause__ is loop.failure
    loop.stop()


def test_a_late_command_times_out_but_an_eviction_does_not(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, hold = threading.Event(), threading.Event()
    hold.set()
    loop = make_loop(kind, UdpLink(LOOPBACK))
    turn = loop._run_once

    def stuck() -> None:
        if not hold.is_set():
            entered.set()
            hold.wait(LIVENESS_S)
        turn()

    def late(command: Callable[[], None]) -> None:
        entered.clear()
        hold.clear()
        loop._link.wake()
        assert entered.wait(LIVENESS_S)
        with monkeypatch.context() as patience:
            patience.setattr(transport.switch.switch_loop, "ANSWER_S", 0.05)
            with pytest.raises(SwitchaggError, match="answer"):
                command()
        hold.set()

    monkeypatch.setattr(loop, "_run_once", stuck)
    loop.start()
    late(lambda: loop.admit(JOB, [("127.0.0.1", 9), ("127.0.0.1", 10)]))
    with pytest.raises(KeyError):
        loop.seen(0, 0)
    loop.admit(JOB, [("127.0.0.1", 9), ("127.0.0.1", 10)])
    late(lambda: loop.evict(1))
    with pytest.raises(KeyError):
        loop.seen(0, 0)
    loop.stop()


def test_stop_frees_everything_even_without_start(kind: str) -> None:
    descriptors, threads = sorted(os.listdir("/proc/self/fd")), threading.enumerate()
    for start in (True, False):
        loop = make_loop(kind, UdpLink(LOOPBACK))
        if start:
            loop.start()
        loop.stop()
        loop.stop()
        with pytest.raises(SwitchaggError, match="running"):
            loop.counters()
    assert threading.enumerate() == threads
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def contribution(rank: int, chunk: int, generation: int = 1) -> Packet:
    slot, version = JOB.place(0, chunk)
    values = np.arange(4, dtype=np.int32) * (rank + 1) + chunk
    return Packet(1, generation, 0, rank, Op.SUM, slot, version, chunk, values)


@pytest.mark.parametrize("plane", WITHOUT_P4)
@pytest.mark.parametrize("sent", SENT)
def test_packets_over_udp_are_summed_and_broadcast(plane: str, sent: str) -> None:
    check_sums(lambda link: SwitchLoop(link, DATAPLANES[plane](8, 4)), sent)


@pytest.mark.parametrize("sent", SENT)
def test_packets_over_udp_are_summed_by_either_loop(kind: str, sent: str) -> None:
    check_sums(lambda link: make_loop(kind, link), sent)


def check_sums(make: Callable[[UdpLink], CommandLoop[Any]], sent: str) -> None:
    """P5: also of datagrams that have no checksum."""
    link, *workers = (UdpLink(LOOPBACK, gso=None if sent == "gso" else False) for _ in range(3))
    loop, address = make(link), link.address
    loop.start()
    loop.admit(JOB, [worker.address for worker in workers])
    for rank, worker in enumerate(workers):
        worker._socket.setsockopt(socket.SOL_SOCKET, 11, sent == "without checksums")  # SO_NO_CHECK
        frames = [np.frombuffer(encode(contribution(rank, chunk)), np.uint8) for chunk in range(8)]
        assert worker.send(np.stack(frames), address) == 8
    for worker in workers:
        results: dict[int, Packet] = {}
        while len(results) < 8:
            assert worker.wait(LIVENESS_S)
            for bundle, sender, _ in worker.receive():
                assert sender == address
                results |= {packet.chunk: packet for packet in (decode(row.tobytes()) for row in bundle)}
        for chunk, packet in results.items():
            assert packet.result
            np.testing.assert_array_equal(packet.values, np.arange(4) * 3 + 2 * chunk)
        worker.close()
    counters = Counter(loop.counters())
    assert (counters["absorbed"], counters["broadcast"], counters["link_sent_datagrams"]) == (8, 8, 16)
    assert loop.seen(3, 0) == SlotView(3, (0, 1))
    loop.stop()
