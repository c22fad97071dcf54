"""What every mesh owes its users: one test body, many kinds (see meshes.py)."""

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.errors import JobError
from tests.transport.contracts.meshes import (
    CLASSES,
    KINDS,
    LIVENESS_S,
    MeshKind,
    connect_all,
    free_addresses,
    received,
    turn,
)
from transport.links.link import LinkClosed
from transport.meshes.credit_queue import Credited, Sends
from transport.meshes.mesh import HEAD_BYTES_MAX, Event, MemberLost, Mesh, MessageReceived, MessageSent, OutgoingMessage
from transport.meshes.mesh_handshake import VERSION, pack_opening

ROOT = Path(__file__).resolve().parents[3]
Gather = Callable[..., list[Any]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> MeshKind:
    return KINDS[request.param]


@pytest.fixture
def gather(kind: MeshKind) -> Iterator[Gather]:
    """gather(n): n members that have met; closed at the end."""
    met: list[Mesh] = []

    def gathered(members: int) -> list[Mesh]:
        found = connect_all(kind, free_addresses(members), [{"job": "a"}] * members)
        met.extend(mesh for mesh in found if not isinstance(mesh, Exception))
        assert len(met) == members, found
        return found

    yield gathered
    for mesh in met:
        mesh.close(0.0)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def count(kind: type, events: list[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


# ---- messages


def test_members_know_their_number_and_how_many_there_are(gather: Gather, request: pytest.FixtureRequest) -> None:
    meshes = gather(3)
    assert [(mesh.member, mesh.members) for mesh in meshes] == [(0, 3), (1, 3), (2, 3)]
    names = {name.removesuffix(" in C") for name in request.node.callspec.params.values()}
    assert {mesh.link for mesh in meshes} <= names
    for mesh in meshes:
        assert {"tx_messages", "tx_bytes", "rx_messages", "rx_bytes"} <= set(mesh.counters)
        assert mesh.receive() == []


def test_messages_of_all_pairs_arrive_once_whole_and_in_order(gather: Gather) -> None:
    meshes = gather(4)
    expected: list[list[tuple[int, bytes, bytes]]] = [[] for _ in meshes]
    for number in range(25):
        for mesh in meshes:
            for to in range(4):
                if to != mesh.member:
                    head = bytes([mesh.member, to, number])
                    data = random_bytes(number * 97 % 501, number)
                    mesh.send(to, head, data, number * 4 + to)
                    expected[to].append((mesh.member, head, data))
    events = turn(
        meshes, lambda found: all(count(MessageReceived, one) >= 75 and count(MessageSent, one) >= 75 for one in found)
    )
    for mine, wanted, mesh in zip(events, expected, meshes, strict=True):
        for sender in range(4):
            assert [m for m in received(mine) if m[0] == sender] == [m for m in wanted if m[0] == sender]
        assert len(received(mine)) == 75
        tickets = [event.ticket for event in mine if isinstance(event, MessageSent)]
        assert sorted(tickets) == sorted(n * 4 + to for n in range(25) for to in range(4) if to != mesh.member)
        sizes = sum(len(data) for _, _, data in wanted)
        assert (mesh.counters["rx_messages"], mesh.counters["rx_bytes"]) == (75, sizes)
        assert (mesh.counters["tx_messages"], mesh.counters["tx_bytes"]) == (75, sizes)


@pytest.mark.parametrize("head_bytes", [0, 1, HEAD_BYTES_MAX])
def test_messages_of_different_sizes_do_not_mix(gather: Gather, head_bytes: int) -> None:
    here, there = gather(2)
    sizes = [0, 1, 0, 1439, 1440, 1441, 16_384, 0, 65_507, 65_536, 3, 300_001, 0]
    sent = [(0, random_bytes(head_bytes, size), random_bytes(size, size)) for size in sizes]
    for ticket, (_, head, data) in enumerate(sent):
        here.send(1, head, data, ticket)
    events = turn([here, there], lambda found: count(MessageReceived, found[1]) >= len(sizes))
    assert received(events[1]) == sent


def test_the_longest_message_arrives(gather: Gather) -> None:
    here, there = gather(2)
    data = np.arange(here.message_bytes_max // 4 + 1, dtype=np.uint32).view(np.uint8)[: here.message_bytes_max]
    here.send(1, b"long", data.data, 7)
    events = turn([here, there], lambda found: count(MessageReceived, found[1]) == 1)
    (message,) = [event for event in events[1] if isinstance(event, MessageReceived)]
    assert np.array_equal(np.frombuffer(message.data, np.uint8), data)


def classed(kind: MeshKind, members: int) -> list[Any]:
    found = connect_all(kind, free_addresses(members), [{"job": "a", "classes": CLASSES}] * members)
    assert all(not isinstance(mesh, Exception) and mesh.classes == CLASSES for mesh in found), found
    return found


def test_flows_are_in_order_each_by_itself(kind: MeshKind) -> None:
    meshes = classed(kind, 3)
    expected: dict[tuple[int, int, int], list[bytes]] = {}  # receiver, sender, flow
    for number in range(20):
        for mesh in meshes:
            for to in {0, 1, 2} - {mesh.member}:
                flow = number * (mesh.member + 1) % 3
                data = random_bytes(number * 997 % 3000 + 70_000 * (number % 5 == 0), number)
                mesh.send(to, bytes([flow]), data, number * 4 + to, flow)
                expected.setdefault((to, mesh.member, flow), []).append(data)
    events = turn(
        meshes, lambda found: all(count(MessageReceived, one) >= 40 and count(MessageSent, one) >= 40 for one in found)
    )
    arrived: dict[tuple[int, int, int], list[bytes]] = {}
    for mesh, mine in zip(meshes, events, strict=True):
        for sender, head, data in received(mine):
            arrived.setdefault((mesh.member, sender, head[0]), []).append(data)
    assert arrived == expected
    for mesh in meshes:
        mesh.close()


def test_all_that_was_sent_on_any_flow_arrives_before_the_member_is_lost_once(kind: MeshKind) -> None:
    here, there = classed(kind, 2)
    for flow in range(3):
        here.send(1, bytes([flow]), random_bytes(30_000, flow), flow, flow)
    closing = threading.Thread(target=here.close, args=(LIVENESS_S,))
    closing.start()
    events = turn([there], lambda found: count(MemberLost, found[0]) > 0)[0]
    events += there.receive()
    assert sorted(received(events)) == [(0, bytes([flow]), random_bytes(30_000, flow)) for flow in range(3)]
    assert isinstance(events[-1], MemberLost)
    assert count(MemberLost, events) == 1
    there.send(0, b"", b"too late", 9, 0)
    assert MessageSent(9) in turn([there], lambda found: count(MessageSent, found[0]) > 0)[0]
    closing.join()
    there.close()


def test_members_with_different_classes_refuse_each_other_by_name(kind: MeshKind) -> None:
    how = [{"job": "a", "classes": classes, "timeout_s": 5.0} for classes in ((0, 7), ())]
    for error in connect_all(kind, free_addresses(2), how):
        assert isinstance(error, JobError)
        assert "classes 0 7'" in str(error)


def test_messages_that_no_mesh_can_send_are_refused(gather: Gather) -> None:
    here, there = gather(2)
    too_long = np.empty(here.message_bytes_max + 1, np.uint8).data
    for to, head, data in [
        (1, b"x" * (HEAD_BYTES_MAX + 1), b""),
        (1, b"", too_long),
        (0, b"", b""),
        (2, b"", b""),
        (-1, b"", b""),
    ]:
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the mesh's own
            here.send(to, head, data, 1)
    here.send(1, b"fine", b"", 2)
    assert received(turn([here, there], lambda found: count(MessageReceived, found[1]) == 1)[1]) == [(0, b"fine", b"")]


def test_bursts_in_both_directions_do_not_block_each_other(gather: Gather) -> None:
    meshes = gather(3)
    piece = random_bytes(200_000)
    for ticket in range(30):  # 6 MB to each: beyond what sockets hold
        for mesh in meshes:
            for to in range(3):
                if to != mesh.member:
                    mesh.send(to, ticket.to_bytes(2, "big"), piece, 3 * ticket + to)
    done = turn(
        meshes, lambda found: all(count(MessageReceived, one) == 60 and count(MessageSent, one) == 60 for one in found)
    )
    for mine in done:
        assert all(data == piece for _, _, data in received(mine))


def test_a_ticket_that_is_in_use_is_refused(gather: Gather) -> None:
    """What is carried twice under one ticket would be forgotten once, and C would read memory that nobody keeps."""
    here, there = gather(2)
    sends = here if isinstance(here, Sends) else Credited(here)
    sends.set_credit(1 << 24)
    alike = [OutgoingMessage(1, b"", random_bytes(100_000, number), 7) for number in range(2)]
    with pytest.raises(ValueError, match="ticket 7 is that of a message"):
        sends.carry(alike)
    turn([here, there], lambda found: count(MessageReceived, found[1]) == 1)


def test_memory_may_change_after_sent(gather: Gather) -> None:
    here, there = gather(2)
    memory = [bytearray(random_bytes(100_000, number)) for number in range(40)]
    expected = [bytes(one) for one in memory]
    for number, one in enumerate(memory):
        here.send(1, b"", memoryview(one), number)
    found: list[Event] = []
    back: list[int] = []
    end = time.monotonic() + LIVENESS_S
    while len(back) < 40 or count(MessageReceived, found) < 40:
        assert time.monotonic() < end
        for event in here.receive():
            assert isinstance(event, MessageSent)
            back.append(event.ticket)
            memory[event.ticket][:] = bytes(100_000)
        found += there.receive()
    assert sorted(back) == list(range(40))
    assert [data for _, _, data in received(found)] == expected


def test_data_is_received_into_the_given_memory_or_its_own(gather: Gather) -> None:
    here, there = gather(2)
    sizes = [10, 5000, 0, 400_000, 77, 400_000]
    room = [memoryview(bytearray(size)) for size in sizes]
    asked: list[tuple[int, bytes, int]] = []

    def place(sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        asked.append((sender, head, size_bytes))
        return room[head[0]] if head[0] % 2 == 0 or size_bytes > 100_000 else None

    data = [random_bytes(size, size) for size in sizes]
    for number, one in enumerate(data):
        here.send(1, bytes([number]), one, number)
    events = turn([here, there], lambda found: count(MessageReceived, found[1]) == 6, [None, place])
    assert received(events[1]) == [(0, bytes([n]), one) for n, one in enumerate(data)]
    assert len(asked) == len(set(asked))  # at most once each
    assert all(size == sizes[head[0]] and sender == 0 for sender, head, size in asked)
    for event in events[1]:
        if isinstance(event, MessageReceived) and (0, event.head, len(event.data)) in asked:
            number = event.head[0]
            if number in (0, 3, 5):
                assert room[number] == data[number]


def test_received_data_stays_as_it_is(gather: Gather) -> None:
    here, there = gather(2)
    first, second = random_bytes(30_000, 1), random_bytes(30_000, 2)
    here.send(1, b"", first, 1)
    kept = turn([here, there], lambda found: count(MessageReceived, found[1]) == 1)
    for number in range(20):
        here.send(1, b"", second, 2 + number)
    turn([here, there], lambda found: count(MessageReceived, found[1]) == 20)
    assert received(kept[1])[0][2] == first


def test_one_receive_is_bounded(gather: Gather) -> None:
    here, there = gather(2)
    for number in range(300):
        here.send(1, b"", random_bytes(50_000), number)
    most = 0
    taken = 0
    end = time.monotonic() + LIVENESS_S
    while taken < 300:
        assert time.monotonic() < end
        here.receive()
        now = count(MessageReceived, list(there.receive()))
        taken += now
        most = max(most, now)
    assert most < 300


# ---- waiting


def test_receive_never_blocks_and_wait_times_out(gather: Gather) -> None:
    here, _ = gather(2)
    turn([here], lambda _: not here.wait(0))  # what meeting has left behind
    begin = time.monotonic()
    while here.wait(0.05):  # a beat of the other
        here.receive()
    assert 0.04 < time.monotonic() - begin < LIVENESS_S
    assert here.receive() == []


def test_a_message_ends_a_wait(gather: Gather) -> None:
    here, there = gather(2)

    def send() -> None:
        time.sleep(0.05)
        here.send(1, b"", b"now", 1)
        while not here.receive():
            here.wait(0.01)

    sender = threading.Thread(target=send)
    sender.start()
    found: list[Event] = []
    end = time.monotonic() + LIVENESS_S
    while not found:
        assert time.monotonic() < end
        assert there.wait(LIVENESS_S)
        found += there.receive()
    sender.join()
    assert received(found) == [(0, b"", b"now")]


def test_wake_ends_a_wait_from_another_thread_and_before_it(gather: Gather) -> None:
    here, _ = gather(2)
    begun = time.monotonic()
    waker = threading.Timer(0.05, here.wake)
    waker.start()
    assert here.wait(LIVENESS_S)
    waker.join()
    here.wake()
    here.wake()
    assert here.wait(LIVENESS_S)
    assert time.monotonic() - begun < LIVENESS_S
    assert here.receive() == []


# ---- endings


def test_close_delivers_what_was_sent(gather: Gather) -> None:
    """Though the other goes on sending: a socket closed with bytes unread throws away what it had still to send."""
    here, there = gather(2)
    data = random_bytes(3_000_000)
    for number in range(3):
        here.send(1, bytes([number]), data, number)
    there.send(0, b"", data, 1)
    there.receive()
    closer = threading.Thread(target=here.close, args=(LIVENESS_S,))
    closer.start()
    events: list[Event] = []
    end = time.monotonic() + LIVENESS_S
    for ticket in itertools.count(2):
        if count(MemberLost, events):
            break
        assert time.monotonic() < end
        there.send(0, b"", b"more", ticket)
        events += there.receive()
        there.wait(0.001)
    closer.join()
    assert received(events) == [(0, bytes([n]), data) for n in range(3)]
    assert [event.member for event in events if isinstance(event, MemberLost)] == [0]


def test_a_lost_member_is_reported_once_and_gets_nothing_more(gather: Gather) -> None:
    one, two, three = gather(3)
    two.close()
    two.close()  # again does nothing
    events = turn([one, three], lambda found: all(count(MemberLost, mine) == 1 for mine in found))
    for mesh, mine in zip((one, three), events, strict=True):
        (lost,) = [event for event in mine if isinstance(event, MemberLost)]
        assert lost.member == 1
        assert lost.reason
        mesh.send(1, b"", b"into the void", 5)
        assert turn([mesh], lambda found: bool(found[0])) == [[MessageSent(5)]]
    one.send(2, b"", b"still here", 6)
    events = turn([one, three], lambda found: count(MessageReceived, found[1]) == 1)
    assert received(events[1]) == [(0, b"", b"still here")]
    assert count(MemberLost, events[0] + events[1]) == 0


PEER = """
import sys, time
from tests.transport.contracts.meshes import KINDS
mesh = KINDS[sys.argv[1]].connect(1, [("127.0.0.1", int(port)) for port in sys.argv[2:]], job="a", timeout_s=20)
mesh.send(0, b"", b"here", 1)
while True:
    mesh.receive()
    mesh.wait(None)
"""


def test_a_member_that_is_given_up_holds_nothing_back(gather: Gather) -> None:
    """Member 1 never looks at its mesh, as one that is stopped."""
    here, _, there = gather(3)
    data = random_bytes(4 << 20)
    for ticket in range(20):
        here.send(1, b"lost", data, ticket)
    early = [event for _ in range(50) for event in here.receive()]
    here.give_up(1)
    here.give_up(1)
    here.send(2, b"next", data, 20)
    here.send(1, b"late", data, 21)
    events = turn(
        [here, there],
        lambda found: count(MessageSent, early + found[0]) == 22 and count(MessageReceived, found[1]) == 1,
    )
    assert {event.ticket for event in early + events[0] if isinstance(event, MessageSent)} == set(range(22))
    assert [event.member for event in events[0] if isinstance(event, MemberLost)] == [1]
    assert received(events[1]) == [(0, b"next", data)]


def test_a_killed_process_is_lost_and_its_tickets_come_back(kind: MeshKind, request: pytest.FixtureRequest) -> None:
    addresses = free_addresses(2)
    name = next(name for name, one in KINDS.items() if one is kind)
    command = [sys.executable, "-c", PEER, name, *(str(port) for _, port in addresses)]
    helpers = {**os.environ, "PYTHONPATH": str(ROOT / "tests/shared")}
    with subprocess.Popen(command, cwd=ROOT, env=helpers) as peer:
        mesh = kind.connect(0, addresses, job="a", timeout_s=LIVENESS_S)
        request.addfinalizer(mesh.close)
        turn([mesh], lambda found: received(found[0]) == [(1, b"", b"here")])
        peer.kill()
        for ticket in range(50):
            mesh.send(1, b"", bytes(100_000), ticket)
        events = turn([mesh], lambda found: count(MemberLost, found[0]) == 1 and count(MessageSent, found[0]) == 50)[0]
    assert sorted(event.ticket for event in events if isinstance(event, MessageSent)) == list(range(50))
    assert [event.member for event in events if isinstance(event, MemberLost)] == [1]


def test_a_closed_mesh_raises_and_leaves_nothing_open(kind: MeshKind) -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    one, two = connect_all(kind, free_addresses(2), [{"job": "a"}] * 2)
    one.close(0.0)
    two.close(0.0)
    one.wake()
    for use in (one.receive, lambda: one.wait(0), lambda: one.send(1, b"", b"", 1)):
        with pytest.raises(LinkClosed):
            use()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, threads)


# ---- meeting


def test_a_mesh_of_one_member_needs_no_connection(kind: MeshKind) -> None:
    mesh = kind.connect(0, free_addresses(1), job="a", timeout_s=1)
    assert mesh.receive() == []
    assert not mesh.wait(0)
    mesh.close()


def test_a_member_that_never_comes_is_named(kind: MeshKind) -> None:
    addresses = free_addresses(3)
    found = connect_all(kind, addresses, [{"job": "a", "timeout_s": 0.5}] * 2)
    for error in found:
        assert isinstance(error, JobError), error
        assert "member 2" in str(error)
        assert str(addresses[2][1]) in str(error)


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        ({"job": "red"}, {"job": "blue"}, ("'red'", "'blue'")),
        ({"method": "ring"}, {"method": "tree"}, ("'ring'", "'tree'")),
    ],
    ids=["job", "method"],
)
def test_both_sides_name_a_disagreement(kind: MeshKind, one: Any, two: Any, words: Any) -> None:
    how = [{"job": "a", "token": "t" * 32, "timeout_s": LIVENESS_S, **told} for told in (one, two)]
    found = connect_all(kind, free_addresses(2), how)
    for error in found:
        assert isinstance(error, JobError), error
        for word in (*words, "member 0", "member 1"):
            assert word in str(error), error


@pytest.mark.parametrize("odd", range(4))
def test_a_disagreement_of_two_is_told_to_all(kind: MeshKind, odd: int) -> None:
    """Who doesn't meet the odd one, or meets it after others gave up, would wait for somebody that won't come."""
    how = [{"job": "a", "method": "tree" if member == odd else "ring", "timeout_s": 600} for member in range(4)]
    for error in connect_all(kind, free_addresses(4), how):
        assert isinstance(error, JobError), error
        assert f"member {odd}" in str(error)
        assert "'ring'" in str(error)
        assert "'tree'" in str(error)


def test_a_job_of_another_size_is_named(kind: MeshKind) -> None:
    addresses = free_addresses(3)
    found = connect_all(kind, addresses, [{"addresses": addresses[:2], "job": "a"}, {"job": "a"}, {"job": "a"}])
    for error in found:
        assert isinstance(error, JobError), error
        assert "'3'" in str(error)
        assert "'2'" in str(error)


@pytest.mark.parametrize("differing", [{"job": "b"}, {"token": "t" * 32}], ids=["job", "token"])
def test_a_member_with_another_token_or_job_s_name_is_a_unknown_sender_and_the_error_says_so(
    kind: MeshKind, differing: dict[str, str]
) -> None:
    how = [{"job": "a", "timeout_s": 1.0}, {"job": "a", "timeout_s": 1.0, **differing}]
    for error in connect_all(kind, free_addresses(2), how):
        assert isinstance(error, JobError), error
        assert "no connection with member" in str(error)
        assert "came for job" not in str(error)
        assert "prove that they have this job's token" in str(error) or "another token" in str(error), error


def test_a_wrong_rank_is_named(kind: MeshKind) -> None:
    one, two, three = free_addresses(3)
    # Member 2 has the list in another order, and looks for member 0 where member 1 is.
    lists = [[one, two, three], [one, two, three], [two, one, three]]
    found = connect_all(kind, [], [{"addresses": places, "timeout_s": 5} for places in lists])
    assert isinstance(found[2], JobError), found
    assert any(isinstance(error, JobError) for error in found[:2]), found
    told = " ".join(map(str, found))
    assert "says it is member" in told or "looks for member" in told, told


GARBAGE = {
    "nothing": b"",
    "random": random_bytes(3000, 8),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half": pack_opening(bytes(16))[:9],
    "opening": pack_opening(bytes(16)),
    "version": b"sahelo\xff\xff" + random_bytes(40, 9),
    "lengths": b"sahelo" + bytes((2, VERSION)) + b"\xff" * 1000,
    "zeros": bytes(2000),
}


def test_unknown_connections_delay_no_member(kind: MeshKind) -> None:
    """They are there before the members meet, while they do, and afterwards."""
    addresses = free_addresses(3)
    members: list[Any] = [None] * 3
    threads = []

    def come(number: int) -> None:
        members[number] = connect_all(kind, addresses, [{"member": number, "job": "a"}])[0]

    threads = [threading.Thread(target=come, args=(number,)) for number in range(3)]
    threads[0].start()
    time.sleep(0.2)
    unknown_senders = [kind.unknown_sender(addresses[0], data) for name, data in GARBAGE.items() if name != "version"]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(LIVENESS_S)
    try:
        assert not any(isinstance(member, Exception) or member is None for member in members), members
        for data in GARBAGE.values():
            try:
                unknown_senders.append(kind.unknown_sender(addresses[1], data))
            except ConnectionRefusedError:
                continue  # nobody listens any more: as good
        for number in range(20):
            members[0].send(1, b"", random_bytes(5000, number), number)
        events = turn(members, lambda found: count(MessageReceived, found[1]) == 20)
        assert [data for _, _, data in received(events[1])] == [random_bytes(5000, n) for n in range(20)]
        assert not any(isinstance(event, MemberLost) for mine in events for event in mine)
    finally:
        for unknown_sender in unknown_senders:
            unknown_sender.close()
        for member in members:
            if not isinstance(member, Exception):
                member.close(0.0)
