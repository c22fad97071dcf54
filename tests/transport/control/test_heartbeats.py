"""Heartbeats and leases over a model of TCP with outages: a link that is back before the lease ends saves the job."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from switchagg.controller.admission import Controller
from switchagg.join import Join
from switchagg.membership import Running
from transport.control.heartbeats import AGAIN_NS, BEAT_NS, Heartbeats
from transport.control.requests import CONNECTIONS_MAX

SECOND = 1_000_000_000
MS = 1_000_000
HALF_RTT = 2 * MS
LATE = 30 * MS
"""How much later than asked for a thread may run."""
SEEDS = range(20)


class Connection:
    """TCP as Linux has it: a segment that is lost is sent again after 0.2 s (a SYN after 1 s), then each time after
    twice as long; all later ones wait for it."""

    def __init__(self, opened_ns: int, is_up: Callable[[int], bool]) -> None:
        self.is_up = is_up
        self.free_ns = [0, 0]  # by direction: when all that was sent is there
        self.ready_ns = 0
        at_ns = self.sent(opened_ns, 0, SECOND)
        for direction in (1, 0, 1, 0):  # the handshakes of TCP and ZMTP
            at_ns = self.sent(at_ns, direction)
        self.ready_ns = at_ns

    def sent(self, now_ns: int, direction: int, timeout_ns: int = 200 * MS) -> int:
        """When a message that is handed over now arrives."""
        at_ns = max(now_ns, self.ready_ns)
        while not (self.is_up(at_ns) and self.is_up(at_ns + HALF_RTT)):
            at_ns += timeout_ns
            timeout_ns *= 2
        self.free_ns[direction] = max(self.free_ns[direction], at_ns + HALF_RTT)
        return self.free_ns[direction]


class Network:
    """A controller, one member, and the link between them, which is down from `down_ns` to `up_ns`."""

    def __init__(self, seed: int, lease_ns: int, *, replaces: bool = True, beat_ns: int = BEAT_NS) -> None:
        self.random = random.Random(seed)
        self.replaces = replaces
        self.down_ns = self.up_ns = 1 << 62
        self.now_ns = self.silent_most_ns = 0
        self.dead = False
        self.controller = Controller(
            16, 1, partial(next, itertools.count(7)), lease_ns=lease_ns, claim_ns=lease_ns // 4
        )
        self.controller.join(
            Join(
                job="job",
                rank=0,
                workers=1,
                elements=1,
                streams=1,
                window_slots=8,
                address=("10.0.0.1", 9),
                incarnation=5,
                timeout_ns=SECOND,
            ),
            0,
        )
        self.beats = Heartbeats(beat_ns)
        self.connections = [Connection(0, self.is_up)]
        self.order = itertools.count()
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.at(0, self.member)
        self.at(0, self.switch)

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when_ns, next(self.order), act))

    def is_up(self, now_ns: int) -> bool:
        return not self.down_ns <= now_ns < self.up_ns

    def run(self, until_ns: int) -> None:
        while self.events[0][0] <= until_ns:
            self.now_ns, _, act = heapq.heappop(self.events)
            act()

    def member(self) -> None:
        """What the client does when a request is due."""
        if self.dead:
            return
        now_ns = self.now_ns
        self.silent_most_ns = max(self.silent_most_ns, self.beats.silent_ns(now_ns))
        if now_ns >= self.beats.due_ns:
            if self.beats.fresh and self.replaces:
                del self.connections[1 : 1 + (len(self.connections) == CONNECTIONS_MAX)]
                self.connections.append(Connection(now_ns, self.is_up))
            used = self.connections[-1 if self.beats.fresh else 0]
            self.at(used.sent(now_ns, 0), partial(self.request, used))
            self.beats.note_sent(now_ns)
        self.at(max(self.beats.due_ns, now_ns + 1) + self.random.randrange(LATE), self.member)

    def request(self, by: Connection) -> None:
        self.controller.heartbeat(5, self.now_ns)
        if isinstance(self.controller.membership_state(5), Running):
            self.at(by.sent(self.now_ns, 1), partial(self.answer, by))

    def answer(self, by: Connection) -> None:
        if by in self.connections:
            self.connections = [by]
            self.beats.note_answer()

    def switch(self) -> None:
        self.controller.handle_timer(self.now_ns)
        self.at(self.now_ns + 10 * MS, self.switch)

    @property
    def runs(self) -> bool:
        return isinstance(self.controller.membership_state(5), Running)


def outages(lease_s: float, **how: object) -> Iterator[Network]:
    """Networks after an outage of half a second less than the lease, from any moment on."""
    for seed in SEEDS:
        net = Network(seed, round(lease_s * SECOND), **how)  # type: ignore[arg-type]
        net.down_ns = 3 * SECOND + net.random.randrange(SECOND)
        net.up_ns = net.down_ns + round((lease_s - 0.5) * SECOND)
        net.run(net.up_ns + 2 * SECOND)
        yield net


@pytest.mark.parametrize("lease_s", [1.0, 1.3, 2.0, 4.0, 8.0, 30.0])
def test_c9_a_link_that_is_back_half_a_second_before_the_lease_ends_saves_the_job(lease_s: float) -> None:
    assert BEAT_NS + AGAIN_NS + 2 * LATE < SECOND / 2
    for net in outages(lease_s):
        assert net.runs
        assert net.silent_most_ns < lease_s * SECOND
        assert len(net.connections) == 1  # those that were tried meanwhile have ended


@pytest.mark.parametrize("how", [{"replaces": False}, {"beat_ns": SECOND // 2}])
def test_the_same_outages_end_jobs_whose_connection_stays_or_whose_beats_are_rare(how: dict[str, object]) -> None:
    assert not all(net.runs for net in outages(4.0, **how))


@pytest.mark.parametrize("lease_s", [1.0, 4.0])
def test_c6_c12_death_is_noticed_at_the_lease(lease_s: float) -> None:
    for seed in SEEDS:
        lease_ns = round(lease_s * SECOND)
        member_dies, switch_dies = Network(seed, lease_ns), Network(seed, lease_ns)
        death_ns = 3 * SECOND + member_dies.random.randrange(SECOND)
        for net in (member_dies, switch_dies):
            net.run(death_ns)
        member_dies.dead = True
        member_dies.run(death_ns + lease_ns + 10 * MS)
        assert not member_dies.runs
        switch_dies.down_ns = death_ns
        switch_dies.run(death_ns + lease_ns + BEAT_NS + 2 * LATE)
        assert switch_dies.silent_most_ns >= lease_ns - LATE
