"""What is TCP's own of its mesh: options, pieces of any size, a peer that talks nonsense after its hello."""

import os
import socket
import threading
from typing import Any

import numpy as np
import pytest

from switchagg.errors import JobError
from switchagg.native.library import missing
from tests.transport.contracts.meshes import KINDS, LIVENESS_S, connect_all, free_addresses, received, turn
from transport.links.outages import patience_s
from transport.meshes.credit_queue import Sends
from transport.meshes.hello import Hello, unpack
from transport.meshes.job_key import job_key
from transport.meshes.mesh import URGENT, MemberLost, MessageReceived, MessageSent, OutgoingMessage
from transport.meshes.mesh_handshake import HandshakeKind as MessageKind
from transport.meshes.mesh_handshake import PeerSession, pack_opening, size_bytes
from transport.meshes.tcp_gathering import TcpOptions, congestion_control_of, listen
from transport.meshes.tcp_mesh import TcpMesh

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def read_message(peer: socket.socket) -> bytes:
    message = b""
    while len(message) < size_bytes(message):
        message += peer.recv(size_bytes(message) - len(message))
    return message


def a_mesh_and_a_bare_peer(**options: Any) -> tuple[Any, socket.socket]:
    """Member 0, and a socket that has sent the hello of member 1."""
    listener = listen(("127.0.0.1", 0))
    address = listener.getsockname()
    found: list[Any] = []
    told = TcpOptions(**options)
    addresses = [address, ("127.0.0.1", 1)]
    joiner = threading.Thread(
        target=lambda: found.append(TcpMesh.connect(0, addresses, job="j", listener=listener, options=told))
    )
    joiner.start()
    peer = socket.create_connection(address, LIVENESS_S)
    key, nonce = job_key("", "j"), bytes(16)
    for byte in pack_opening(nonce):  # one byte at a time is an opening too
        peer.sendall(bytes([byte]))
    session = PeerSession.challenged(key, nonce, read_message(peer))
    peer.sendall(session.seal(MessageKind.PROOF, Hello("j", "", "tcp", 1, 2, 0).pack()))
    assert unpack(session.open(MessageKind.ANSWER, read_message(peer))) == (Hello("j", "", "tcp", 0, 2), b"")
    joiner.join()
    return found[0], peer


def frame(head: bytes, data: bytes) -> bytes:
    return bytes([0, len(head), 0, 0]) + len(data).to_bytes(4, "big") + head + data


def read(peer: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        found += peer.recv(size - len(found))
    return bytes(found)


@pytest.mark.parametrize("piece", [1, 7, 8, 63, 64, 1000, 16_384, 16_385, 100_000])
def test_messages_are_reassembled_from_pieces_of_any_size(piece: int) -> None:
    mesh, peer = a_mesh_and_a_bare_peer()
    chance = np.random.default_rng(piece)
    sizes = [0, 5, 0, 1, 90, 300, 2000] + ([] if piece < 60 else [40_000, 70_000, 0, 33_000])
    wanted = [(1, chance.bytes(int(chance.integers(0, 65))), chance.bytes(size)) for size in sizes * 2]
    stream = b"".join(frame(head, data) for _, head, data in wanted)
    room = [memoryview(bytearray(size)) if number % 2 else None for number, size in enumerate(sizes * 2)]
    asked = iter([place for place, size in zip(room, sizes * 2, strict=True) if size])
    events: list[Any] = []
    for at in range(0, len(stream), piece):
        peer.sendall(stream[at : at + piece])
        mesh.wait(LIVENESS_S)
        events += mesh.receive(lambda sender, head, size: next(asked))
    while len(events) < len(wanted):
        assert mesh.wait(LIVENESS_S)
        events += mesh.receive(lambda sender, head, size: next(asked))
    assert received(events) == wanted
    peer.close()
    mesh.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x02\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x41\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        frame(b"ok", b"fine") + b"\xff" * 30,
    ],
)
def test_a_member_that_sends_no_messages_is_lost(nonsense: bytes) -> None:
    mesh, peer = a_mesh_and_a_bare_peer()
    peer.sendall(nonsense)
    events = turn([mesh], lambda found: any(isinstance(event, MemberLost) for event in found[0]))[0]
    assert "it sent what is no message" in events[-1].reason  # type: ignore[union-attr]
    assert received(events) == ([(1, b"ok", b"fine")] if nonsense[8:10] == b"ok" else [])
    assert mesh.receive() == []
    peer.close()
    mesh.close()


def test_random_bytes_after_the_hello_end_in_a_loss_and_nothing_else() -> None:
    for seed in range(30):
        mesh, peer = a_mesh_and_a_bare_peer()
        chance = np.random.default_rng(seed)
        peer.sendall(bytes([0, chance.integers(0, 80), 0, 0, 0, 0]) + chance.bytes(int(chance.integers(1, 5000))))
        peer.close()
        events = turn([mesh], lambda found: any(isinstance(event, MemberLost) for event in found[0]))[0]
        assert all(isinstance(event, MessageReceived | MemberLost) for event in events)
        mesh.close()


def test_close_writes_no_late_data_into_the_callers_memory() -> None:
    mesh, peer = a_mesh_and_a_bare_peer()
    memory = bytearray(1000)
    peer.sendall(frame(b"", bytes(range(1, 251)) * 4)[:100])
    while not any(memory):
        mesh.receive(lambda sender, head, size: memoryview(memory))
    before = bytes(memory)
    peer.sendall(b"x" * 900)
    mesh.close()
    assert memory == before
    peer.close()


def test_options_reach_the_sockets() -> None:
    with socket.socket() as plain:
        control = congestion_control_of(plain)
    mesh, peer = a_mesh_and_a_bare_peer(congestion_control=control, buffer_bytes=50_000, tos=0xB8, silence_s=9.0)
    assert mesh.details == {"congestion_control": control}
    (inner,) = [flow[1] for flow in mesh._flows]
    tcp, ip = socket.IPPROTO_TCP, socket.IPPROTO_IP
    assert inner.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000  # as the kernel counts
    assert inner.getsockopt(ip, socket.IP_TOS) == 0xB8
    assert inner.getsockopt(tcp, socket.TCP_NODELAY)
    assert inner.getsockopt(tcp, socket.TCP_NOTSENT_LOWAT) == 1 << 17
    assert inner.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 1000 * patience_s(9.0)
    peer.close()
    mesh.close()


def test_the_sockets_of_a_class_have_its_dscp_and_so_priority() -> None:
    meshes = connect_all(KINDS["tcp"], free_addresses(2), [{"classes": (0, 3, 7)}] * 2)
    for mesh in meshes:
        flows = [flow[1 - mesh.member] for flow in mesh._flows]
        assert [each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 for each in flows] == [56, 32, 0]
        assert [each.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) for each in flows] == [6, 4, 0]
    for mesh in meshes:
        mesh.close()


@pytest.mark.parametrize(
    "wrong", [{"tos": 256}, {"tos": -1}, {"silence_s": 0}, {"unsent_bytes": 0}, {"buffer_bytes": 0}]
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TcpOptions(**wrong)


def test_a_port_in_use_and_an_unknown_congestion_control_are_named() -> None:
    with listen(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"can't listen at 127.0.0.1:{port}"):
            listen(("127.0.0.1", port))
    with pytest.raises(JobError, match="TCP congestion control nonsense: the kernel refuses it here"):
        TcpMesh.connect(0, free_addresses(2), options=TcpOptions(congestion_control="nonsense"), timeout_s=1)


def test_a_forked_child_does_not_keep_the_connections_of_a_process_that_died() -> None:
    one, two = connect_all(KINDS["tcp"], free_addresses(2), [{}, {}])
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)  # until the parent has seen what it wants to see
        os._exit(0)
    try:
        one._flows[0][1].close()  # as the end of its process does
        turn([two], lambda events: any(type(event) is MemberLost for event in events[0]))
    finally:
        os.write(tell, b".")
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)
        two.close()
        one.close()


def test_what_is_urgent_waits_for_the_credit_and_one_message_at_most() -> None:
    mesh, peer = a_mesh_and_a_bare_peer(buffer_bytes=50_000)
    assert isinstance(mesh, Sends)
    data = [bytes([ticket]) * 10**6 for ticket in range(6)]
    mesh.set_credit(1_500_000)
    mesh.carry([OutgoingMessage(1, b"h", data[ticket], ticket, 5) for ticket in range(4)])
    mesh.receive()
    assert mesh.waiting_bytes == 2_000_000  # overdrawn by one message
    mesh.carry([OutgoingMessage(1, b"h", data[4], 4, -1), OutgoingMessage(1, b"h", data[5], 5, URGENT)])
    mesh.receive()
    assert mesh.waiting_bytes == 3_000_000
    arrived: list[bytes] = []
    reader = threading.Thread(target=lambda: arrived.append(read(peer, 6 * (len(frame(b"h", b"")) + 10**6))))
    reader.start()
    back: list[Any] = []
    while len(back) < 6:
        mesh.carry([])
        back += mesh.receive()
        mesh.wait(0.01)
    reader.join()
    assert back == [MessageSent(ticket) for ticket in (0, 1, 5, 4, 2, 3)]
    assert arrived[0] == b"".join(frame(b"h", data[ticket]) for ticket in (0, 1, 5, 4, 2, 3))
    assert mesh.waiting_bytes == 0
    assert (mesh.counters["tx_messages"], mesh.counters["tx_bytes"]) == (6, 6 * 10**6)
    peer.close()
    mesh.close()
