"""Priority flow control in Python, the oracle of that in C: pausable links, and buffers of ports that pause them."""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from emulation.sim.lossless.pausing import PAUSE_FRAME_BYTES, PfcConfig
from emulation.sim.network.simulated_link import CE, CLASS_MASK, CLASS_SHIFT, ECT, LinkConfig
from emulation.sim.network.virtual_clock import Action, VirtualClock
from switchagg.priority import BEST_EFFORT, CLASSES
from tests.oracles.oracle_links import OracleLink


class Charge:
    """A frame in the buffer of the port it came in by; `frames`: how many that it caused have not left yet."""

    __slots__ = ("frames", "kind", "port", "size_bytes")

    def __init__(self, port: "OracleIngressPort", kind: int, size_bytes: int) -> None:
        self.port = port
        self.kind = kind
        self.size_bytes = size_bytes
        self.frames = 0

    def left(self) -> None:
        """A frame has left."""
        self.frames -= 1
        if not self.frames:
            self.port.release(self)


class HostBacklog:
    """Frames of one sender in its host's queue. then: called when one has left it."""

    __slots__ = ("_then", "frames")
    port = None

    def __init__(self, then: Callable[[], None]) -> None:
        self.frames = 0
        self._then = then

    def left(self) -> None:
        """A frame has left."""
        self.frames -= 1
        self._then()


class Charges:
    """The charge of the frame that a switch or a host works on now; a network has one object."""

    def __init__(self) -> None:
        self.now: Charge | HostBacklog | None = None


class _Waiting(NamedTuple):
    frame: Any
    size_bytes: int
    sender: int
    to: int
    charge: Charge | HostBacklog | None


class OraclePausableLink(OracleLink):
    """As `OracleLink`, with a queue for each class, which can be paused.

    Frames of a lossless class are never dropped here: the ports they came in by limit them. `port`: where it leads to,
    if that can pause it; None: a host, which takes all. most_bytes: the longest that any class's queue was.
    """

    def __init__(
        self, network: VirtualClock, config: LinkConfig, receive: Action, seed: str, pfc: PfcConfig, charges: Charges
    ) -> None:
        super().__init__(network, config, receive, seed)
        self.receive = receive
        self.port: OracleIngressPort | None = None
        self.paused_since_ns: list[int | None] = [None] * CLASSES
        self.pauses = 0
        self.most_bytes = 0
        self._paused_ns = 0  # of pauses that are over, in all classes
        self._served = [0] * CLASSES  # start-time fair queueing, in bytes: what a class's next frame begins at …
        self._turn = 0  # … and what the last that was served began at
        self._pfc = pfc
        self.charges = charges
        self._queues: list[deque[_Waiting]] = [deque() for _ in range(CLASSES)]
        self._queued = [0] * CLASSES
        self._serving: _Waiting | None = None
        self._chance = random.Random(f"{seed} red").random

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """See `Link.send`. True also for a frame that is ready later."""
        charge = self.charges.now
        if charge is not None:
            charge.frames += 1
        waiting = _Waiting(frame, size_bytes, sender, to, charge)
        if ready_ns > self.network.now_ns:
            self.network.schedule(ready_ns, partial(self._ready, waiting))
            return True
        return self._enqueue(waiting)

    def backlog(self, left: Callable[[], None]) -> HostBacklog:
        """As of `SimulatedLink`."""
        return HostBacklog(left)

    def send_held(self, backlog: HostBacklog, frame: Any, size_bytes: int, sender: int, to: int) -> bool:
        """As of `PausableLink`."""
        outer, self.charges.now = self.charges.now, backlog
        accepted = self.send(frame, size_bytes, self.network.now_ns, sender, to)
        self.charges.now = outer
        return accepted

    def _ready(self, waiting: _Waiting, _frame: None, _sender: int, _to: int) -> None:
        self._enqueue(waiting)

    def backlog_bytes(self, now_ns: int) -> int:
        """Queued in all classes, with the rest of the frame on the wire."""
        rest = max(0, self._free_ns - now_ns) * self._rate // 8_000_000_000 if self._serving else 0
        return sum(self._queued) + rest

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """The earliest instant: if no class is paused until then."""
        left = max(0, self.backlog_bytes(self.network.now_ns) - size_bytes)
        return self.network.now_ns - (-left * 8_000_000_000 // self._rate)

    def waits_for(self, port: "OracleIngressPort", kind: int) -> bool:
        """Whether frames of a class that came in by a port wait here."""
        return any(waiting.charge is not None and waiting.charge.port is port for waiting in self._queues[kind])

    def pause(self, kind: int, on: bool) -> None:
        """A pause frame came, or one that ends it. The frame on the wire is finished."""
        if on and self.paused_since_ns[kind] is None:
            self.paused_since_ns[kind] = self.network.now_ns
            self.pauses += 1
        elif not on and self.paused_since_ns[kind] is not None:
            self._paused_ns = self.paused_ns(kind)
            self.paused_since_ns[kind] = None
            self._waits_again(kind)
            self._serve()

    def paused_ns(self, *kinds: int) -> int:
        """How long classes have been paused, all pauses that are over and those of these kinds added up."""
        since = [self.paused_since_ns[kind] for kind in kinds]
        return self._paused_ns + sum(self.network.now_ns - begun_ns for begun_ns in since if begun_ns is not None)

    def wire_busy_ns(self) -> int:
        """How long the frame on the wire still takes."""
        return max(0, self._free_ns - self.network.now_ns) if self._serving else 0

    def _enqueue(self, waiting: _Waiting) -> bool:
        kind = BEST_EFFORT - (waiting.to >> CLASS_SHIFT & CLASS_MASK)
        queued = self._queued[kind]
        if kind not in self._pfc.classes and queued and queued + waiting.size_bytes > self.config.queue_bytes:
            self.faults["drop_queue"] += 1
            if waiting.charge is not None:
                waiting.charge.left()
            return False
        if waiting.to & ECT and self._marks(queued):
            waiting = waiting._replace(to=waiting.to | CE)
            self.marked_frames += 1
        if not queued:
            self._waits_again(kind)
        self.sent_frames += 1
        self.sent_bytes += waiting.size_bytes
        self._queued[kind] += waiting.size_bytes
        self.most_bytes = max(self.most_bytes, self._queued[kind])
        self._queues[kind].append(waiting)
        self._serve()
        return True

    def _marks(self, queued: int) -> bool:
        red = self._pfc.red
        if red is None:
            return queued * 8_000_000_000 > self._ecn_cost
        if queued <= red.least_bytes:
            return False
        part = (queued - red.least_bytes) / (red.most_bytes - red.least_bytes)
        return queued > red.most_bytes or self._chance() < red.chance * part

    def _serve(self) -> None:
        """If the wire is idle: the next frame of the class whose turn it is, of those that aren't paused."""
        if self._serving is not None:
            return
        ready = self._ready_kinds()
        if not ready:
            return
        kind = ready[0] if self._pfc.strict else min(ready, key=self._served.__getitem__)
        now_ns = self.network.now_ns
        waiting = self._serving = self._queues[kind].popleft()
        self._queued[kind] -= waiting.size_bytes
        self._turn = self._served[kind]
        self._served[kind] += waiting.size_bytes
        cost_ns, remainder = divmod(waiting.size_bytes * 8_000_000_000, self._rate)
        if self._free_ns + (1 if self._remainder else 0) < now_ns:
            self._free_ns, self._remainder = now_ns, 0
        later_ns, self._remainder = divmod(self._remainder + remainder, self._rate)
        self._free_ns += cost_ns + later_ns
        idle_ns = self._free_ns + (1 if self._remainder else 0)
        self.network.schedule(idle_ns, self._on_sent)

    def _ready_kinds(self) -> list[int]:
        return [kind for kind, queue in enumerate(self._queues) if queue and self.paused_since_ns[kind] is None]

    def _waits_again(self, kind: int) -> None:
        """A class that was idle or paused has no claim to what others had meanwhile."""
        self._served[kind] = max(self._served[kind], self._turn)

    def _arrives(self, size_bytes: int) -> Action:
        return self.receive if self.port is None else partial(self.port.arrived, size_bytes)

    def _on_sent(self, _frame: None, _sender: int, _to: int) -> None:
        waiting, self._serving = self._serving, None
        assert waiting is not None
        if waiting.charge is not None:
            waiting.charge.left()
        arrival_ns = self.network.now_ns + self._delay_ns
        self._deliver(arrival_ns, waiting.frame, waiting.size_bytes, waiting.sender, waiting.to)
        self._serve()


class OracleIngressPort:
    """Where a link comes in at a switch, which is what the link delivers to. reverse: the other direction, on which
    pauses travel."""

    def __init__(self, link: OraclePausableLink, reverse: OraclePausableLink, pfc: PfcConfig) -> None:
        self.link = link
        self.held_bytes = [0] * CLASSES
        self.most_bytes = 0
        self.released = [0] * CLASSES  # frames
        self.pausing = [False] * CLASSES
        self.dropped = 0  # for want of headroom
        self.absorbed: Callable[[Charge, Any], None] = lambda charge, _frame: self.release(charge)
        self._reverse = reverse
        self._pfc = pfc
        self._room_bytes = pfc.xoff_bytes + pfc.headroom(link.config)
        self._charges = link.charges
        link.port = self

    def arrived(self, size_bytes: int, frame: Any, sender: int, to: int) -> None:
        """A frame whose last bit is there. The frame's buffer space is held until the frames that the switch sends for
        it have left; a frame that is folded into a sum or dropped holds no space."""
        kind = BEST_EFFORT - (to >> CLASS_SHIFT & CLASS_MASK)
        if kind not in self._pfc.classes:
            self.link.receive(frame, sender, to)
            return
        if self.held_bytes[kind] + size_bytes > self._room_bytes:
            self.dropped += 1
            return
        self.held_bytes[kind] += size_bytes
        self.most_bytes = max(self.most_bytes, self.held_bytes[kind])
        charge = self._charges.now = Charge(self, kind, size_bytes)
        charge.frames = 1  # until the switch has seen it
        self.link.receive(frame, sender, to)
        self._charges.now = None
        charge.frames -= 1
        if not charge.frames:
            self.absorbed(charge, frame)
        if self.held_bytes[kind] > self._pfc.xoff_bytes and not self.pausing[kind]:
            self._tell(kind, True)

    def release(self, charge: Charge) -> None:
        """A frame has left the buffer."""
        kind = charge.kind
        self.held_bytes[kind] -= charge.size_bytes
        self.released[kind] += 1
        if self.pausing[kind] and self.held_bytes[kind] <= self._pfc.xon_bytes:
            self._tell(kind, False)

    def _tell(self, kind: int, on: bool) -> None:
        """A pause frame leaves after the frame on the wire, before all that wait."""
        self.pausing[kind] = on
        reverse, network = self._reverse, self.link.network
        frame_ns = -(-PAUSE_FRAME_BYTES * 8_000_000_000 // reverse.config.rate_bps)
        at_ns = network.now_ns + reverse.wire_busy_ns() + frame_ns + reverse.config.delay_ns
        network.schedule(at_ns, lambda _frame, _sender, _to: self.link.pause(kind, on))
