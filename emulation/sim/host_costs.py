"""The cost of communication for a rank's host, and the rate of a connection: by default no cost, and the link's rate.

A *transfer* is all that a host sends to one peer in one step of one call: a message of a collective's plan, however
many segments it travels in; a worker's part of a call for one server, and its answer; a call for the switch, and its
result. A transfer occupies the sender's host for `transfer_ns` before it leaves and the receiver's host for as long
before it is used, one after the other on each host: the overhead o of LogP (Culler et al., 1993), at both ends.
Received messages go first.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

from emulation.sim.network.virtual_clock import VirtualClock

Done = Callable[[], None]


@dataclass(frozen=True)
class HostCosts:
    """transfer_ns: of each transfer, at either end. flow_bps: most of one connection, frames as links count them; 0: as
    much as its links. A worker of the switch has one connection. calls_at_once, call_ns: of a rank, see `CallTurns`."""

    transfer_ns: int = 0
    flow_bps: int = 0
    calls_at_once: int = 0
    call_ns: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())


@dataclass(frozen=True)
class PacketCosts:
    """The CPU time that packets take. packet_ns: of each that a host sends, and of each that comes to it.
    switch_packet_ns: of each that comes to a switch's program, and of each that it sends. wake_ns: of a host or program
    before the first packet after a pause. cpus: all take turns on so many, a packet each; 0: each has its own.
    """

    packet_ns: int = 0
    switch_packet_ns: int = 0
    wake_ns: int = 0
    cpus: int = 0

    def __bool__(self) -> bool:
        return bool(self.packet_ns or self.switch_packet_ns or self.wake_ns)


FREE = HostCosts()
NO_PACKET_COSTS = PacketCosts()


class Processor:
    """A host does one thing after the other, each in its time; what takes no time happens at once."""

    def __init__(self, network: VirtualClock) -> None:
        self._network = network
        self._free_ns = 0
        self._tasks = 0

    @property
    def idle(self) -> bool:
        return not self._tasks

    def run(self, cost_ns: int, action: Done) -> None:
        """Let action happen after all before it and cost_ns."""
        if not cost_ns and self.idle:
            action()
            return
        self._tasks += 1
        self._free_ns = max(self._free_ns, self._network.now_ns) + cost_ns
        self._network.schedule(self._free_ns, lambda *_: self._finish(action))

    def _finish(self, action: Done) -> None:
        self._tasks -= 1
        action()


class FlowPacer:
    """A connection's frames at flow_bps at most: a frame begins when the frame before it would have ended."""

    def __init__(self, flow_bps: int) -> None:
        self._rate = flow_bps
        self._free_ns = self._remainder = 0  # as of `SimulatedLink`

    @property
    def next_ns(self) -> int:
        """When the next frame may leave."""
        return self._free_ns + (1 if self._remainder else 0)

    def left(self, now_ns: int, size_bytes: int) -> None:
        """A frame leaves now."""
        if self.next_ns < now_ns:
            self._free_ns, self._remainder = now_ns, 0
        whole_ns, part = divmod(self._remainder + size_bytes * 8_000_000_000, self._rate)
        self._free_ns += whole_ns
        self._remainder = part


@dataclass(eq=False)
class _Rank:
    """A rank's calls. launching: what does so, one after the other. waiting: those that have not begun, by name, with
    their urgency; place: in the order of all."""

    launching: Processor
    waiting: dict[Hashable, tuple[int, Callable[[Done], None], Done]] = field(default_factory=dict)
    call_counts: Counter[Hashable] = field(default_factory=Counter)
    place: int = 0
    under_way: int = 0
    is_busy: bool = False


class CallTurns:
    """Ranks begin calls as a communicator of NCCL does: so many at once, in one order; 0: each call begins at once. A
    rank launches one after the other, in costs.call_ns each, from when it is the call's turn.

    The rank that could go on first decides what is next: the most urgent of its calls that wait. The others follow, so
    that no two ranks wait for each other.
    """

    def __init__(self, costs: HostCosts, network: VirtualClock) -> None:
        self._at_once, self._call_ns, self._network = costs.calls_at_once, costs.call_ns, network
        self._order: list[Hashable] = []
        self._ranks: dict[int, _Rank] = {}

    def enter(self, rank: int, key: int | None, priority: int, begin: Callable[[Done], None], done: Done) -> None:
        """A rank has a call to begin. key, priority: of its request. begin(done) begins it."""
        state = self._ranks.get(rank)
        if state is None:
            state = self._ranks[rank] = _Rank(Processor(self._network))
        if not self._at_once:
            state.launching.run(self._call_ns, partial(begin, done))
            return
        number = state.call_counts[key, priority]
        state.call_counts[key, priority] += 1
        state.waiting[key, priority, number] = priority, begin, done
        self._go_on(state)

    def _go_on(self, state: _Rank) -> None:
        if state.is_busy:
            return  # a call has ended at once: the caller that is in it looks again
        state.is_busy = True
        while state.waiting and state.under_way < self._at_once:
            if state.place == len(self._order):
                self._order.append(min(state.waiting, key=lambda name: state.waiting[name][0]))
            if self._order[state.place] not in state.waiting:
                break
            _, begin, done = state.waiting.pop(self._order[state.place])
            state.place += 1
            state.under_way += 1
            state.launching.run(self._call_ns, partial(begin, partial(self._ended, state, done)))
        state.is_busy = False

    def _ended(self, state: _Rank, done: Done) -> None:
        state.under_way -= 1
        done()
        self._go_on(state)
