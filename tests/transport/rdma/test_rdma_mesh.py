"""What the contract of meshes doesn't ask of the one over RDMA: credits, pieces, and bad peers."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from switchagg.errors import JobError
from switchagg.native import library
from tests.transport.contracts.meshes import KINDS, LIVENESS_S, connect_all, free_addresses, rdma, received, turn
from transport.meshes.mesh import MemberLost, MessageReceived, MessageSent
from transport.meshes.mesh_opening import bind_place, connect_mesh
from transport.meshes.tcp_gathering import exchange
from transport.rdma.rdma_handshake import MeshQueuePair
from transport.rdma.rdma_mesh import RETURN_AFTER, SLOT_BYTES, SLOTS, RdmaMesh, RdmaMeshOptions
from transport.rdma.verbs import Opcode, QPEnd, SendRequest

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")


@pytest.fixture
def pair() -> Iterator[list[RdmaMesh]]:
    met = connect_all(KINDS["rdma"], free_addresses(2), [{"job": "a"}] * 2)
    yield met
    for mesh in met:
        mesh.close(0.0)


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_peer_that_does_not_read_gets_no_more_than_its_slots_hold(pair: list[RdmaMesh]) -> None:
    """The normal case of a slow reader costs no NAK: credits run out first."""
    here, there = pair
    data = np.arange(300_000, dtype=np.uint32).view(np.uint8)  # 19 pieces
    for ticket in range(4):
        here.send(1, b"", data.data, ticket)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        here.receive()
        here.wait(0.01)
    sender = here._peers[1][0]
    assert sender.credits == 0
    assert here.counters["sends"] == SLOTS
    assert here.counters["no_credit"] > 0
    events = turn(pair, lambda found: len(of(MessageReceived, found[1])) == 4 and len(of(MessageSent, found[0])) == 4)
    assert all(bytes(event.data) == data.tobytes() for event in of(MessageReceived, events[1]))
    counters = sender.pair.counters
    assert (counters["naks_received"], counters["timeouts"], there._peers[0][0].pair.counters["no_receive"]) == (
        0,
        0,
        0,
    )
    assert there.counters["receives"] == 4 * 20
    assert there.counters["returns"] == 80 // RETURN_AFTER
    turn(pair, lambda _: sender.credits == SLOTS)


def test_short_messages_are_one_send_and_long_ones_are_sent_in_pieces(pair: list[RdmaMesh]) -> None:
    here, _ = pair
    limit = SLOT_BYTES - 8 - 4
    for size, pieces in ((0, 1), (limit, 1), (limit + 1, 2), (3 * SLOT_BYTES, 4)):
        before = here.counters["sends"]
        here.send(1, b"head", bytes(size), 1)
        events = turn(pair, lambda found: bool(of(MessageSent, found[0]) and of(MessageReceived, found[1])))
        assert received(events[1]) == [(0, b"head", bytes(size))]
        assert here.counters["sends"] - before == pieces
    assert sorted(here._free[0]) == list(range(32))


def test_full_queues_both_ways_do_not_block_each_other(pair: list[RdmaMesh]) -> None:
    """Credits come back by places of their own, also while both sides have all slots full."""
    data = bytes(SLOT_BYTES * (SLOTS + 3))
    for mesh in pair:
        for ticket in range(6):
            mesh.send(1 - mesh.member, b"", data, ticket)
    for mesh in pair:
        mesh.receive()
    time.sleep(0.05)
    events = turn(
        pair, lambda found: all(len(of(MessageReceived, one)) == 6 and len(of(MessageSent, one)) == 6 for one in found)
    )
    assert all(bytes(event.data) == data for mine in events for event in of(MessageReceived, mine))


@pytest.mark.parametrize(
    "piece",
    [b"\x01\0\0\0\0\0\0\0", b"\0\xff\0\0\0\0\0\0", b"\0\0\0\0\xff\xff\xff\xff", b"\0\x05\0\0\0\0\0\0ab", b"short"],
    ids=["kind", "head", "size", "cut", "short"],
)
def test_a_peer_that_sends_no_message_is_lost(pair: list[RdmaMesh], piece: bytes) -> None:
    here, there = pair
    here._out[0, : len(piece)] = np.frombuffer(piece, np.uint8)
    region = here._out_region
    here._peers[1][0].posted.append((None, -1, False))  # type: ignore[arg-type]
    here._peers[1][0].pair.post_send([SendRequest(1 << 41, Opcode.SEND, region.address, len(piece), region.lkey)])
    (lost,) = of(MemberLost, turn([there], lambda found: bool(of(MemberLost, found[0])))[0])
    assert lost.member == 0
    assert "no message" in lost.reason
    here._peers[1][0].posted.clear()


def test_more_data_than_announced_is_refused(pair: list[RdmaMesh]) -> None:
    here, there = pair
    here._out[0, :8] = np.frombuffer(b"\0\0\0\0\0\0\0\x05", np.uint8)
    region = here._out_region
    posts = [SendRequest(1 << 41, Opcode.SEND, region.address, size, region.lkey) for size in (8, 6)]
    here._peers[1][0].pair.post_send(posts)
    (lost,) = of(MemberLost, turn([there], lambda found: bool(of(MemberLost, found[0])))[0])
    assert lost.reason == "it sent 6 bytes where 5 were missing"


def test_a_failed_queue_pair_is_a_lost_member() -> None:
    """Its peer sends nothing, so no message is acknowledged."""
    addresses = free_addresses(2)
    options = RdmaMeshOptions(timeout=8)  # 1 ms
    here, there = connect_all(KINDS["rdma"], addresses, [{"job": "b", "options": options}] * 2)
    there._peers[0][0].pair.close()
    here.send(1, b"", b"x", 9)
    events = turn([here], lambda found: bool(of(MemberLost, found[0])))[0]
    assert events == [MessageSent(9), MemberLost(1, "its queue pair failed: RETRY_EXC_ERR")]
    del there._peers[0]
    here.close()
    there.close()


def test_a_peer_that_sends_no_queue_pair_is_named() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(JobError, match="job j: nothing from member 4 in time"):
            exchange({4: ours}, {4: b"12345"}, time.monotonic() + 0.05, "j")
        theirs.send(b"abcde12")
        assert exchange({4: ours}, {4: b"12345"}, time.monotonic() + 5, "j") == {4: b"abcde"}
        theirs.close()
        with pytest.raises(JobError, match=r"member 4 has left before|member 4 is gone"):
            exchange({4: ours}, {4: b"12345"}, time.monotonic() + 5, "j")
    end = MeshQueuePair(QPEnd("10.1.2.3", 4791, 0xABCDEF, 77), 4096, SLOTS, SLOT_BYTES)
    assert MeshQueuePair.unpack(end.pack()) == end
    for wrong in (b"x" * len(end.pack()), end._replace(mtu=1500).pack(), b"sardma" + b"\xff" * (len(end.pack()) - 6)):
        with pytest.raises(JobError):
            MeshQueuePair.unpack(wrong)


def test_missing_hardware_is_reported() -> None:
    with pytest.raises(JobError, match=r"no RDMA hardware|no RDMA device"):
        rdma(0, free_addresses(2), job="a", timeout_s=5, options=RdmaMeshOptions(provider="verbs"))


def test_a_place_bound_before_becomes_a_mesh() -> None:
    place = bind_place("rdma", "127.0.0.1")
    mesh = connect_mesh("rdma", 0, [place.address], job="a", method="", timeout_s=LIVENESS_S, bound=place)
    assert (mesh.link, mesh.members) == ("rdma", 1)
    mesh.close()
    with pytest.raises(JobError, match="link rdma"):
        connect_mesh("rdma", 0, [place.address], job="a", method="", timeout_s=1, options={"colour": 1})
