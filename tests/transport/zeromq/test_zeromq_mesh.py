"""What the ZeroMQ mesh promises beside the contract: bytes in libzmq are bounded, and unknown peers change nothing."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from switchagg.errors import JobError
from tests.transport.contracts.meshes import (
    LIVENESS_S,
    MeshKind,
    connect_all,
    free_addresses,
    received,
    send_over_tcp,
    turn,
)
from transport.links.link import Address
from transport.meshes.hello import Hello
from transport.meshes.job_key import job_key
from transport.meshes.mesh import Event, MemberLost, MessageReceived, MessageSent
from transport.meshes.mesh_handshake import HandshakeKind, PeerSession, pack_opening
from transport.zeromq.zmq_gathering import BYE, CONTROL, FLOW, HELLO, LOST
from transport.zeromq.zmq_link import ZeroMqLink
from transport.zeromq.zmq_mesh import COPIED_BYTES, ZERO_COPY_BYTES, ZeroMqMesh
from transport.zeromq.zmq_sockets import ZeroMqOptions

KIND = MeshKind(ZeroMqMesh.connect, send_over_tcp)


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    found = connect_all(KIND, free_addresses(2), [{"job": "a", "options": ZeroMqOptions(silence_s=5.0)}] * 2)
    yield found
    for mesh in found:
        mesh.close(0.0)


def sent(events: list[Event]) -> list[int]:
    return [event.ticket for event in events if isinstance(event, MessageSent)]


def fill(here: ZeroMqMesh, size: int, messages: int) -> list[int]:
    """Send many messages to a member that reads none; the tickets that came back."""
    data = bytes(size)
    for ticket in range(messages):
        here.send(1, b"h", data, ticket)
    back: list[int] = []
    quiet = 0
    while quiet < 5:
        found = sent(list(here.receive()))
        back += found
        quiet = 0 if found else quiet + 1
        here.wait(0.02)
    return back


@pytest.mark.parametrize("size", [5000, 300_000])
def test_bytes_in_libzmq_that_count_as_sent_are_bounded(pair: list[Any], size: int) -> None:
    """A peer that doesn't read: what counts as sent fits buffers and its queue; all of it arrives in the end."""
    here, there = pair
    messages = max(400, 40_000_000 // size)
    options = ZeroMqOptions()
    back = fill(here, size, messages)
    assert len(back) < messages
    # Its receive buffer grows up to what the kernel allows; ours was asked for, and is counted twice.
    kernel = 2 * options.send_buffer_bytes + int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
    queue = options.queue_messages * (size + 1)
    assert len(back) * (size + 1) <= kernel + queue + COPIED_BYTES + 2 * size
    end = time.monotonic() + LIVENESS_S
    while there.counters["rx_messages"] < messages or len(back) < messages:
        assert time.monotonic() < end, (there.counters, len(back))
        there.receive()
        back += sent(list(here.receive()))
    assert sorted(back) == list(range(messages))


@pytest.mark.parametrize("size", [100, 5000, 50_000])
def test_at_most_64_kb_count_as_sent_while_nothing_leaves(pair: list[Any], size: int) -> None:
    """The other end is gone, and this one hasn't looked yet: libzmq takes messages, and keeps them."""
    here, there = pair
    there.close(0.0)
    time.sleep(0.1)
    back: list[Event] = []
    for ticket in range(60):
        here.send(1, b"", bytes(size), ticket)
        here._flush()
    here._report_sent(back)
    assert 0 < len(back) * size <= COPIED_BYTES
    events = turn([here], lambda found: len(sent(found[0])) + len(back) == 60)
    assert sorted(sent(back) + sent(events[0])) == list(range(60))


def test_long_data_is_sent_and_received_without_copies(pair: list[Any]) -> None:
    here, _ = pair
    data = np.arange(ZERO_COPY_BYTES, dtype=np.uint8)
    here.send(1, b"", data.data, 1)
    events = turn(pair, lambda found: bool(sent(found[0])) and bool(received(found[1])))
    (message,) = [event for event in events[1] if isinstance(event, MessageReceived)]
    assert isinstance(message.data, memoryview)
    assert message.data.format == "B"
    assert np.array_equal(np.frombuffer(message.data, np.uint8), data)


def test_tickets_of_a_lost_member_all_come_back(pair: list[Any]) -> None:
    here, there = pair
    for ticket in range(3000):
        here.send(1, b"", bytes(2000 if ticket % 3 else 100_000), ticket)
    first = sent(list(here.receive()))
    there.close(0.0)
    events = turn([here], lambda found: len(sent(found[0])) + len(first) == 3000)
    assert sorted(first + sent(events[0])) == list(range(3000))
    assert [event.member for event in events[0] if isinstance(event, MemberLost)] == [1]


def test_a_member_is_notified_when_the_other_gives_it_up(pair: list[Any]) -> None:
    here, there = pair
    there._lose(there._peers[0], "it was tested", [])  # as if only this direction had broken
    (lost,) = turn([here], lambda found: bool(found[0]))[0]
    assert isinstance(lost, MemberLost)
    assert lost.member == 1
    assert "it was tested" in lost.reason


def test_a_silent_host_is_lost() -> None:
    """A relay that stops: the connection stays open, and nothing comes any more."""
    addresses = free_addresses(3)
    relay = Relay(addresses[2], addresses[1])
    quick = ZeroMqOptions(silence_s=0.6)
    how = [{"addresses": [addresses[0], addresses[2]]}, {"addresses": addresses[:2]}]
    found = connect_all(KIND, [], [{"job": "a", "options": quick, **told} for told in how])
    try:
        relay.stopped = True
        events = turn([found[0]], lambda seen: bool(seen[0]))
        assert [event.member for event in events[0] if isinstance(event, MemberLost)] == [1]
    finally:
        relay.close()
        for mesh in found:
            mesh.close(0.0)


class Relay:
    """Carries bytes between who connects and `to`, until it is stopped."""

    def __init__(self, at: Address, to: Address) -> None:
        self.stopped = self._closed = False
        self._to = to
        self._sockets: list[socket.socket] = [socket.create_server(at)]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._sockets[0].accept()[0]
                try:
                    far = socket.create_connection(self._to)
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for one, two in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._carry, args=(one, two), daemon=True))
                    self._threads[-1].start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self.stopped:
                    sink.sendall(data)
            if not self.stopped:
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in list(self._threads):
            thread.join(5)


# ---- unknown senders

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def raw_garbage() -> dict[str, bytes]:
    chance = np.random.default_rng(11)
    return {
        "random": chance.bytes(3000),
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "half greeting": GREETING[:20],
        "greeting alone": GREETING,
        "old protocol": b"\x01\x00" + b"\x05\x00abcd" * 50,
        "greeting and random": GREETING + chance.bytes(500),
        "half a command": GREETING + READY[:12],
        "huge frame": GREETING + READY + b"\x02" + (1 << 40).to_bytes(8, "big") + bytes(100),
        "half a message": GREETING + READY + b"\x01\x05hello",
    }


def foreign_messages(members: int) -> list[list[bytes]]:
    chance = np.random.default_rng(12)
    opening = pack_opening(bytes(16))
    forged = PeerSession(bytes(32), bytes(16), bytes(16), True)
    hello = forged.seal(HandshakeKind.PROOF, Hello("a", "", "zeromq", 1, members).pack())
    messages = [
        [b""],
        [b"x"],
        [b"head", b"data"],
        [b"h" * 65, b"data"],
        [b"a", b"b", b"c"],
        [b"a"] * 50,
        [CONTROL, HELLO, hello],
        [CONTROL, HELLO, hello[:-1]],
        [CONTROL, FLOW, forged.seal(HandshakeKind.FLOW, b"\0")],
        [CONTROL, FLOW, b""],
        [CONTROL, HELLO, opening],
        [CONTROL, HELLO, b""],
        [CONTROL, BYE, b""],
        [CONTROL, LOST, b"reason"],
        [CONTROL, b"\xff", b"\xff"],
        [CONTROL],
    ]
    for _ in range(200):
        messages.append([chance.bytes(int(size)) for size in chance.integers(0, 300, int(chance.integers(1, 5)))])
    return messages


def test_garbage_neither_ends_nor_stalls_a_mesh(pair: list[Any]) -> None:
    here, there = pair
    unknown_senders = [send_over_tcp(here._sockets.address, data) for data in raw_garbage().values()]
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{here._sockets.address[1]}")
        messages = foreign_messages(2)
        for message in messages:
            dealer.send_multipart(message)
        for ticket in range(20):
            there.send(0, b"h", bytes(ticket * 5000), ticket)
        events: list[Event] = []
        end = time.monotonic() + LIVENESS_S
        while here.counters["drop_unknown_sender"] < len(messages) or len(received(events)) < 20:
            assert time.monotonic() < end, here.counters
            there.receive()
            events += here.receive()
            here.wait(0.01)
        assert received(events) == [(1, b"h", bytes(ticket * 5000)) for ticket in range(20)]
        assert not any(isinstance(event, MemberLost) for event in events)
        _, _, challenge = dealer.recv_multipart()  # the opening was answered
        session = PeerSession.challenged(job_key("", "a"), bytes(16), challenge)
        late = session.seal(HandshakeKind.PROOF, Hello("a", "", "zeromq", 1, 2).pack())
        dealer.send_multipart([CONTROL, HELLO, late])
        turn([here], lambda _: bool(dealer.poll(10)))
        refusal = session.open(HandshakeKind.REFUSAL, dealer.recv_multipart()[2])
        assert refusal == b"member 0 has begun; nobody else can join"
    finally:
        for unknown_sender in unknown_senders:
            unknown_sender.close()
        context.destroy(0)


def test_a_member_s_malformed_messages_are_dropped(pair: list[Any]) -> None:
    here, there = pair
    connection = there._peers[0].connection
    for frames in ([b"one"], [b"h" * 65, b"data"], [b"a", b"b", b"c"], [CONTROL, b"?", b""], [b""] * 9):
        connection.socket.send_multipart(frames)
    there.send(0, b"fine", b"data", 1)
    events = turn([here, there], lambda found: bool(received(found[0])))
    assert received(events[0]) == [(1, b"fine", b"data")]
    assert here.counters["drop_malformed"] == 5


def header(rows: int, size: int, port: int = 7) -> bytes:
    """Of a bundle, from a link that doesn't listen."""
    return struct.pack(">4sHHIIQ", b"sab2", port, 0, rows, size, 0)


def test_garbage_neither_ends_nor_stalls_a_link() -> None:
    here, there = ZeroMqLink(("127.0.0.1", 0)), ZeroMqLink(("127.0.0.1", 0))
    unknown_senders = [send_over_tcp(here.address, data) for data in raw_garbage().values()]
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{here.address[1]}")
        good = header(2, 3)
        bad = [
            [good, b"12345"],
            [good[:-1], b"123456"],
            [b"sab1" + good[4:], b"123456"],
            [header(2, 3, port=0), b"123456"],
            [header(0, 0), b""],
            [header(0xFFFFFFFF, 0), b""],
            [header(1, 65_508), bytes(65_508)],
            [header(0x10001, 0x10001), bytes(1)],
            *foreign_messages(2),
        ]
        for message in bad:
            dealer.send_multipart(message)
        dealer.send_multipart([good, b"123456"])  # well-formed: from port 7 of that host
        rows = np.arange(400, dtype=np.uint32).view(np.uint8).reshape(16, 100)
        there.send(rows, here.address)
        arrived: list[Any] = []
        end = time.monotonic() + LIVENESS_S
        while len(arrived) < 2 or here.counters["drop_malformed"] < len(bad):
            assert time.monotonic() < end, here.counters
            here.wait(0.05)
            arrived += here.receive()
        found = {sender: bundle.tobytes() for bundle, sender, _ in arrived}
        assert found == {there.address: rows.tobytes(), ("127.0.0.1", 7): b"123456"}
    finally:
        for unknown_sender in unknown_senders:
            unknown_sender.close()
        context.destroy(0)
        here.close()
        there.close()


def test_a_link_closes_the_least_recently_used_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.zeromq.zmq_link.PEERS_MAX", 3)
    here = ZeroMqLink(("127.0.0.1", 0))
    others = [ZeroMqLink(("127.0.0.1", 0)) for _ in range(5)]
    try:
        rows = np.zeros((1, 10), np.uint8)
        for other in others:
            here.send(rows, other.address)
            assert other.wait(LIVENESS_S)
            assert len(other.receive()) == 1
        assert list(here._connections) == [other.address for other in others[2:]]
        here.send(rows, others[0].address)
        assert others[0].wait(LIVENESS_S)
        assert len(others[0].receive()) == 1
    finally:
        for link in (here, *others):
            link.close()


def test_a_link_that_does_not_listen_is_answered_on_its_own_connection() -> None:
    there = ZeroMqLink(("127.0.0.1", 0))
    here = ZeroMqLink(("127.0.0.1", 0), listening=False)
    other = ZeroMqLink(("127.0.0.1", 0), listening=False)
    rows = np.arange(160, dtype=np.uint8).reshape(16, 10)
    try:
        for link in (here, other):
            link.send(rows, there.address)
        arrived: list[Any] = []
        while len(arrived) < 2:
            assert there.wait(LIVENESS_S)
            arrived += there.receive()
        assert {sender for _, sender, _ in arrived} == {here.address, other.address}
        assert there.send(rows[:7], here.address) == 7
        assert here.wait(LIVENESS_S)
        assert [(bundle.tobytes(), sender) for bundle, sender, _ in here.receive()] == [
            (rows[:7].tobytes(), there.address)
        ]
        assert other.receive() == []
        here.close()
        end = time.monotonic() + LIVENESS_S
        while not there.counters["send_lost"]:  # until it is known that it hung up
            assert time.monotonic() < end
            if not there.send(rows, here.address):  # its queue was full before it was known
                there.wait(0.05, writable=True)
        assert there.send(rows, other.address) == 16
        with pytest.raises(JobError, match="can't bind"):
            ZeroMqLink(other.address, listening=False)  # a name that it has alone
    finally:
        for link in (there, here, other):
            link.close()


def test_wait_ends_when_a_full_incoming_connection_has_room() -> None:
    """Who doesn't read makes the link full, and it goes on as soon as it reads."""
    there = ZeroMqLink(("127.0.0.1", 0))
    here = ZeroMqLink(("127.0.0.1", 0), listening=False)
    rows = np.zeros((16, 4000), np.uint8)
    try:
        here.send(rows[:1], there.address)
        assert there.wait(LIVENESS_S)
        there.receive()
        sent = 0
        while accepted := there.send(rows, here.address):
            sent += accepted
        assert there.counters["send_would_block"] == 1
        got = 0
        end = time.monotonic() + LIVENESS_S
        while got < sent + 16:
            assert time.monotonic() < end
            got += sum(len(bundle) for bundle, *_ in here.receive())
            if accepted < 16:
                there.wait(LIVENESS_S, writable=True)
                accepted += there.send(rows[accepted:], here.address)
        assert there.counters["send_lost"] == 0
    finally:
        here.close()
        there.close()


# ---- places that can't be had


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(JobError, match=f"can't listen at 127.0.0.1:{port}: Address already in use"):
            ZeroMqLink(("127.0.0.1", port))


def test_another_process_at_a_member_s_address_is_named() -> None:
    addresses = free_addresses(2)
    silent = r"member 1 at 127\.0\.0\.1:\d+ \(it is silent in the handshake\)"
    with socket.create_server(addresses[1]), pytest.raises(JobError, match=silent):
        ZeroMqMesh.connect(0, addresses, job="a", timeout_s=0.5)
    with pytest.raises(JobError, match="nobody listens there"):
        ZeroMqMesh.connect(0, addresses, job="a", timeout_s=0.3)


@pytest.mark.parametrize("wrong", [{"tos": 256}, {"queue_messages": 0}, {"silence_s": 0.0}, {"send_buffer_bytes": -1}])
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ZeroMqOptions(**wrong)
