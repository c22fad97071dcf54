"""MeshLoop with a party of the test's own: order by urgency, the credit, timers, faults, endings."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from waiting import until

from switchagg.errors import AggregationFailed
from tests.transport.contracts.meshes import connect_all, free_addresses, tcp
from transport.links.link import LinkClosed
from transport.meshes.mesh import (
    URGENT,
    Buffer,
    Event,
    MemberLost,
    MessageReceived,
    MessageSent,
    OutgoingMessage,
    Place,
)
from transport.meshes.mesh_loop import MeshLoop
from transport.meshes.tcp_mesh import TcpMesh

LIVENESS_S = 120.0


class ScriptedMesh:
    """Keeps sent messages until the test returns their tickets. Gives the party the events of the test."""

    member, members, link, message_bytes_max = 0, 2, "scripted", 1 << 20
    classes: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.counters: dict[str, int] = {}
        self.details: dict[str, Any] = {}
        self.closed_with: float | None = None
        self._events: deque[Event] = deque()
        self._news = threading.Event()

    def happen(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()

    def send(self, to: int, head: bytes, data: Buffer, ticket: int, flow: int = -1) -> None:
        self.sent.append(ticket)

    def receive(self, place: Place | None = None) -> Sequence[Event]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def wait(self, timeout_s: float | None) -> bool:
        happened = self._news.wait(timeout_s)
        self._news.clear()
        return happened

    def wake(self) -> None:
        self._news.set()

    def close(self, linger_s: float = 1.0) -> None:
        self.closed_with = linger_s


class ScriptedParty:
    """Sends the messages that the test queues, and records its inputs."""

    def __init__(self) -> None:
        self.outgoing: list[OutgoingMessage] = []
        self.told: list[Any] = []
        self.deadline_ns: int | None = None
        self.fault: Exception | None = None

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        return None

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        if self.fault is not None:
            raise self.fault
        self.told.append((sender, head, bytes(data)))

    def on_sent(self, ticket: int) -> None:
        self.told.append(ticket)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        self.told.append((member, reason))

    def messages_to_send(self) -> list[OutgoingMessage]:
        out, self.outgoing = self.outgoing, []
        return out

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    def handle_timer(self, now_ns: int) -> None:
        assert self.deadline_ns is not None
        self.told.append("timer" if now_ns >= self.deadline_ns else "too early")
        self.deadline_ns = None


class Ends:
    """The loop's reasons for its end."""

    def __init__(self) -> None:
        self.turns = 0
        self.reasons: list[BaseException] = []

    def turned(self) -> None:
        self.turns += 1


def loop_over(mesh: Any, party: Any, ends: Ends, credit_bytes: int | None = None) -> MeshLoop:
    return MeshLoop(
        mesh, party, job="j", on_iteration=ends.turned, on_end=ends.reasons.append, credit_bytes=credit_bytes
    )


def never(reason: BaseException) -> None:
    raise AssertionError(reason)


def test_a_flow_waits_for_its_own_credit_alone() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    mesh.classes = (0, 7)
    loop = loop_over(mesh, party, ends, credit_bytes=1000)
    made = [OutgoingMessage(1, b"", bytes(400), ticket, 5) for ticket in range(10)]
    made += [OutgoingMessage(1, b"", bytes(400), 100 + ticket, 0) for ticket in range(5)]
    loop.submit(lambda now_ns: party.outgoing.extend(made), never)
    until(lambda: len(mesh.sent) == 6)
    assert mesh.sent == [100, 101, 102, 0, 1, 2]
    mesh.happen(MessageSent(100))
    until(lambda: len(mesh.sent) == 7)
    assert mesh.sent[6] == 103
    loop.close()


def test_an_urgent_message_waits_for_the_credit_and_one_message_at_most() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends, credit_bytes=1000)

    def queue_messages(*messages: tuple[int, int, int]) -> None:
        made = [OutgoingMessage(1, b"", bytes(size), ticket, priority) for ticket, size, priority in messages]
        loop.submit(lambda now_ns: party.outgoing.extend(made), never)

    queue_messages(*((ticket, 400, 5) for ticket in range(10)))
    until(lambda: len(mesh.sent) == 3)  # 1200 bytes: overdrawn by one message
    time.sleep(0.02)
    assert mesh.sent == [0, 1, 2]
    assert loop.waiting_bytes == 1200
    queue_messages((100, 5000, 0), (101, 1, 0))
    time.sleep(0.02)
    assert mesh.sent == [0, 1, 2]
    mesh.happen(MessageSent(0))
    until(lambda: len(mesh.sent) == 4)
    assert mesh.sent[3] == 100
    for ticket in (1, 2):
        mesh.happen(MessageSent(ticket))
    until(lambda: party.told == [0, 1, 2])
    assert mesh.sent == [0, 1, 2, 100]  # 5000 bytes lie below
    mesh.happen(MessageSent(100))
    until(lambda: len(mesh.sent) == 8)
    assert mesh.sent[4:] == [101, 3, 4, 5]
    loop.close()


def test_urgent_messages_need_no_credit() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends, credit_bytes=1)
    made = [
        OutgoingMessage(1, b"", bytes(9), 0),
        OutgoingMessage(1, b"", bytes(9), 1),
        OutgoingMessage(1, b"", bytes(9), 2, URGENT),
    ]
    loop.submit(lambda now_ns: party.outgoing.extend(made[:2]), never)
    until(lambda: mesh.sent == [0])
    loop.submit(lambda now_ns: party.outgoing.extend(made[2:]), never)
    until(lambda: mesh.sent == [0, 2])
    assert loop.waiting_bytes == 18
    loop.close()


def test_failure_messages_are_sent_even_if_the_user_closes_at_once() -> None:
    mesh, party = ScriptedMesh(), ScriptedParty()

    class Closing(Ends):
        def turned(self) -> None:
            party.outgoing = [OutgoingMessage(1, b"", b"values", 0), OutgoingMessage(1, b"", b"why", 1, URGENT)]
            loop.fail(AggregationFailed("closed", job="j"))

    loop = loop_over(mesh, party, Closing())
    mesh.happen(MessageReceived(1, b"", b""))
    until(lambda: mesh.closed_with is not None)
    assert mesh.sent == [1]
    loop.close()


def test_without_a_credit_everything_is_sent_at_once() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends)
    made = [OutgoingMessage(1, b"", bytes(10**6), ticket, -ticket) for ticket in range(5)]
    loop.submit(lambda now_ns: party.outgoing.extend(made), never)
    until(lambda: len(mesh.sent) == 5)
    assert mesh.sent == [4, 3, 2, 1, 0]
    loop.close()


def test_events_timers_and_commands_reach_the_party() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends)
    mesh.happen(MessageReceived(1, b"head", b"data"))
    mesh.happen(MemberLost(1, "gone"))
    until(lambda: len(party.told) == 2)
    assert party.told == [(1, b"head", b"data"), (1, "gone")]

    def set_timer(now_ns: int) -> None:
        party.deadline_ns = now_ns + 30_000_000

    loop.submit(set_timer, never)
    until(lambda: len(party.told) == 3)
    assert party.told[2] == "timer"
    until(lambda: ends.turns >= 3)
    loop.close()


def test_a_fault_ends_the_loop_and_answers_every_command() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends)
    party.fault = OSError("no such luck")
    mesh.happen(MessageReceived(1, b"", b""))
    until(lambda: bool(ends.reasons))
    assert isinstance(loop.failure, AggregationFailed)
    assert "member 0: the mesh loop ended: no such luck" in str(loop.failure)
    refused: list[BaseException] = []
    loop.submit(lambda now_ns: None, refused.append)
    assert refused == ends.reasons == [loop.failure]
    loop.close()
    assert mesh.closed_with == 1.0
    assert len(ends.reasons) == 1


def test_commands_given_while_the_loop_ends_are_refused() -> None:
    for _ in range(20):
        mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
        loop = loop_over(mesh, party, ends)
        answered: list[Any] = []
        giver = threading.Thread(
            target=lambda loop=loop, answered=answered: [
                loop.submit(lambda now_ns: answered.append(now_ns), answered.append) for _ in range(200)
            ]
        )
        giver.start()
        loop.close(0.0)
        giver.join()
        until(lambda answered=answered: len(answered) == 200)
        assert mesh.closed_with == 0.0


def test_the_loop_may_be_closed_from_its_own_thread() -> None:
    mesh, party, ends = ScriptedMesh(), ScriptedParty(), Ends()
    loop = loop_over(mesh, party, ends)
    loop.submit(lambda now_ns: loop.close(), never)
    until(lambda: mesh.closed_with is not None)
    loop.close()
    assert "the group was closed" in str(ends.reasons[0])


def test_over_a_real_mesh_no_thread_or_socket_is_left() -> None:
    threads = threading.active_count()
    one, two = connect_all(tcp_kind, free_addresses(2), [{"job": "a"}] * 2)
    assert isinstance(one, TcpMesh)
    parties, ends = (ScriptedParty(), ScriptedParty()), (Ends(), Ends())
    loops = [loop_over(mesh, party, end) for mesh, party, end in zip((one, two), parties, ends, strict=True)]
    loops[0].submit(lambda now_ns: parties[0].outgoing.append(OutgoingMessage(1, b"h", b"hello", 7)), never)
    until(lambda: parties[0].told == [7] and parties[1].told == [(0, b"h", b"hello")])
    loops[0].close()
    until(lambda: parties[1].told[1:] == [(0, "it left")])
    loops[1].close()
    assert threading.active_count() == threads
    with pytest.raises(LinkClosed):
        one.receive()


class _Kind:
    connect = staticmethod(tcp)


tcp_kind: Any = _Kind
