"""What is UDP's own of its mesh: loss, repetition and disorder below it, silence, an earlier life of a member."""

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.wire import Bundle
from tests.transport.contracts.meshes import KINDS, LIVENESS_S, connect_all, free_addresses, received, turn
from transport.links.link import Address
from transport.links.udp_link import UdpLink
from transport.meshes.mesh import MemberLost, MessageReceived, MessageSent
from transport.meshes.udp_mesh import UdpMesh, UdpMeshOptions


class BadLink(UdpLink):
    """Loses, duplicates, delays and damages single datagrams of ours, once switched on."""

    bad = 0.0

    def send(self, bundle: Bundle, to: Address, tos: int | None = None, *, overdraw: bool = False) -> int:
        if not self.bad:
            return super().send(bundle, to)
        chance = self.__dict__.setdefault("chance", np.random.default_rng(5))
        kept = self.__dict__.setdefault("kept", [])
        for row in bundle:
            fate = chance.random()
            if fate < self.bad:
                continue
            if fate < 2 * self.bad:
                kept.append((row.copy(), to))
                continue
            if fate < 3 * self.bad:
                super().send(row.reshape(1, -1), to)
            if fate < 4 * self.bad:
                damaged = row.copy()
                damaged[: int(chance.integers(1, 12))] ^= 255
                super().send(damaged.reshape(1, -1), to)
            super().send(row.reshape(1, -1), to)
        while kept and chance.random() < 0.5:
            late, where = kept.pop(0)
            super().send(late.reshape(1, -1), where)
        return len(bundle)


def meet(members: int, links: Sequence[UdpLink | None], **how: Any) -> list[Any]:
    addresses = [link.address if link else free_addresses(1)[0] for link in links]
    told = [{"job": "a", "link": link} for link in links]

    class Kind:
        @staticmethod
        def connect(**more: Any) -> UdpMesh:
            return UdpMesh.connect(**{**how, **more})

    found = connect_all(Kind, addresses, told)  # type: ignore[arg-type]
    assert all(isinstance(mesh, UdpMesh) for mesh in found), found
    return found


def test_messages_arrive_in_order_and_once_whatever_the_network_does() -> None:
    links = [BadLink(("127.0.0.1", 0)) for _ in range(3)]
    meshes = meet(3, links)
    for link in links:
        link.bad = 0.03
    wanted: dict[tuple[int, int], list[bytes]] = {}
    chance = np.random.default_rng(1)
    for number in range(20):
        for mesh in meshes:
            for to in range(3):
                if to != mesh.member:
                    data = chance.bytes(int(chance.integers(0, 30_000)))
                    wanted.setdefault((mesh.member, to), []).append(data)
                    mesh.send(to, bytes([number]), data, 3 * number + to)
    done = turn(meshes, lambda found: all(len(received(mine)) == 40 for mine in found))
    for mesh, mine in zip(meshes, done, strict=True):
        for sender in {0, 1, 2} - {mesh.member}:
            assert [data for who, _, data in received(mine) if who == sender] == wanted[sender, mesh.member]
        assert not any(isinstance(event, MemberLost) for event in mine)
    assert sum(mesh.counters["retransmitted"] for mesh in meshes) > 10
    assert sum(mesh.counters["drop_unknown_sender"] for mesh in meshes) > 10
    for link in links:
        link.bad = 0.0
    for mesh in meshes:
        mesh.close()


def test_a_member_that_goes_silent_is_lost_by_the_others() -> None:
    links = [BadLink(("127.0.0.1", 0)) for _ in range(2)]
    one, two = meet(2, links, options=UdpMeshOptions(silence_s=0.4))
    links[1].bad = 1.0  # nothing of it gets through
    one.send(1, b"", b"anyone?", 9)
    begun = time.monotonic()
    events = turn([one, two], lambda found: any(isinstance(event, MemberLost) for event in found[0]))[0]
    assert time.monotonic() - begun >= 0.3
    assert events == [MessageSent(9), MemberLost(1, "nothing came from it for 0.4 s")]
    one.close()
    two.close(0.0)


def test_silence_is_noticed_and_beats_are_sent_however_often_the_loop_turns() -> None:
    links = [BadLink(("127.0.0.1", 0)) for _ in range(3)]
    one, two, three = meet(3, links, options=UdpMeshOptions(silence_s=0.4))
    links[2].bad = 1.0
    events, end = [], time.monotonic() + 120
    while not events and time.monotonic() < end:
        events = one.receive()
        assert two.receive() in ([], [MemberLost(2, "nothing came from it for 0.4 s")])
        time.sleep(0.005)
    assert events == [MemberLost(2, "nothing came from it for 0.4 s")]
    for mesh in (one, two, three):
        mesh.close(0.0)


def test_quiet_members_stay() -> None:
    one, two = meet(2, [None, None], options=UdpMeshOptions(silence_s=2.0))  # of this thread, if the machine stalls it
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        for mesh in (one, two):
            assert mesh.receive() == []
            mesh.wait(0.02)
    one.close()
    two.close()


@pytest.mark.parametrize("restarted", [0, 1])
def test_a_restarted_member_is_lost_and_not_taken_for_the_earlier_one(restarted: int) -> None:
    links = [UdpLink(("127.0.0.1", 0)) for _ in range(2)]
    places = [link.address for link in links]
    meshes = meet(2, links)
    meshes[restarted]._links[0].close()  # dies without a word
    one = meshes[1 - restarted]
    how = [{"member": restarted, "job": "a", "timeout_s": 1.0}]
    again: list[Any] = []
    second_life = threading.Thread(target=lambda: again.extend(connect_all(KINDS["udp"], places, how)))
    second_life.start()
    events = turn([one], lambda found: any(isinstance(event, MemberLost) for event in found[0]))[0]
    second_life.join(LIVENESS_S)
    assert f"member {1 - restarted}" in str(again[0])
    assert events[-1] == MemberLost(restarted, "it was started again")
    one.close()


def test_frames_of_unknown_senders_are_counted() -> None:
    one, two = meet(2, [None, None])
    before = one.counters["drop_unknown_sender"]
    unknown_sender = UdpLink(("127.0.0.1", 0))
    frames = np.random.default_rng(1).integers(0, 256, (40, 500), np.uint8)
    frames[:10, :2] = np.frombuffer(b"RT", np.uint8)
    frames[10:20, :6] = np.frombuffer(b"sahelo", np.uint8)
    frames[20:30, :6] = np.frombuffer(b"saping", np.uint8)
    unknown_sender.send(frames, one._links[0].address)
    unknown_sender.send(frames[:, :10].copy(), one._links[0].address)
    two._links[0].send(frames[10:, :10].copy(), one._links[0].address)  # a member's address, none of its frames
    turn([one], lambda _: one.counters["drop_unknown_sender"] >= before + 110)
    two.send(0, b"", b"still", 1)
    assert received(turn([one, two], lambda found: bool(found[0]))[0]) == [(1, b"", b"still")]
    unknown_sender.close()
    one.close()
    two.close()


@pytest.mark.parametrize("size", [1439 - 1, 1439, 1439 + 1, 1440, 2879, 2880])
def test_messages_about_as_long_as_a_segment_arrive(size: int) -> None:
    one, two = meet(2, [None, None])
    one.send(1, b"", bytes(size), 1)
    events = turn([one, two], lambda found: bool(found[1]) and bool(found[0]))
    assert received(events[1]) == [(0, b"", bytes(size))]
    assert events[0] == [MessageSent(1)]
    one.close()
    two.close()


def test_a_message_counts_as_in_flight_until_all_of_it_has_arrived() -> None:
    one, two = meet(2, [None, None])
    one.send(1, b"", bytes(400_000), 1)
    assert one.receive() == []
    two.receive()  # takes a part of it
    assert one.wait(5)
    assert one.receive() == []
    turn([one, two], lambda found: found[0] == [MessageSent(1)])
    one.close()
    two.close()


def test_while_many_datagrams_are_in_flight_the_next_few_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = meet(2, [None, None])
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for size, sleeps in ((10_000, 0), (100_000, 1)):
        two.send(0, b"", b"little", 2)
        two.receive()
        one.send(1, b"", bytes(size), 1)
        assert one.wait(10.0)
        one.receive()
        one.wait(0.0)
        one.wait(0.0)  # nothing has come since
        assert len(slept) == sleeps
    for mesh in (one, two):
        mesh.close(0.0)


def test_the_tos_byte_is_set_on_a_link_that_was_bound_before() -> None:
    link = UdpLink(("127.0.0.1", 0))
    mesh = UdpMesh.connect(0, [link.address], link=link, options=UdpMeshOptions(tos=0xB8))
    assert link._socket.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0xB8
    mesh.close()


def classed() -> list[Any]:
    found = connect_all(KINDS["udp"], free_addresses(2), [{"job": "a", "classes": (0, 3, 7)}] * 2)
    assert all(isinstance(mesh, UdpMesh) for mesh in found), found
    return found


def test_a_class_has_a_socket_with_its_dscp_and_so_priority() -> None:
    meshes = classed()
    for mesh in meshes:
        sockets = [link._socket for link in mesh._links]
        assert [each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 for each in sockets] == [56, 32, 0]
        assert [each.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) for each in sockets] == [6, 4, 0]
        mesh.close()


def test_an_urgent_message_passes_a_full_socket_of_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = classed()
    with monkeypatch.context() as full:
        full.setattr(here._links[2], "has_room", lambda: False)
        here.send(1, b"bulk", bytes(5000), 1, 2)
        here.send(1, b"urgent", bytes(5000), 2, 0)
        found = turn([here, there], lambda events: any(isinstance(event, MessageReceived) for event in events[1]))[1]
        assert [head for _, head, _ in received(found)] == [b"urgent"]
    here.receive()
    assert there._wait(5.0)  # that class's socket ends it, too
    found = turn([here, there], lambda events: any(isinstance(event, MessageReceived) for event in events[1]))[1]
    assert [head for _, head, _ in received(found)] == [b"bulk"]
    here.close()
    there.close()


def test_an_urgent_message_is_read_before_what_of_other_classes_came_earlier() -> None:
    here, there = classed()
    here.send(1, b"bulk", bytes(400_000), 1, 2)
    while here._links[2].counters["sent_bytes"] < 400_000:
        here.receive()
    here.send(1, b"urgent", bytes(5000), 2, 0)
    here.receive()
    assert received(there.receive()) == [(0, b"urgent", bytes(5000))]
    assert turn([here, there], lambda events: bool(received(events[1])))[1][0].head == b"bulk"
    here.close()
    there.close()
