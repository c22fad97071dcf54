"""A link whose output queue serves priority classes strictly, the most urgent first, each in the order of arrival.

A frame on the wire is never interrupted: an urgent frame waits at most for the end of another frame, and for its class.
A frame's class is in its address, as a datagram's is in the DSCP: see `addressed`.
"""

from collections import deque
from typing import Any

from emulation.sim.network.simulated_link import (
    CE,
    CLASS_MASK,
    CLASS_SHIFT,
    DROPPABLE,
    ECT,
    LinkConfig,
)
from emulation.sim.network.virtual_clock import Action, VirtualClock
from switchagg.priority import BEST_EFFORT, CLASSES
from tests.oracles.oracle_links import OracleLink


class OracleStrictLink(OracleLink):
    """As `OracleLink`, with a queue of queue_bytes for each class, whose own length decides what is dropped; marks
    depend on what all classes hold. With frames of one class it does what `OracleLink` does.

    The frame whose turn it is next is chosen at the instant the wire falls idle. A frame that arrives in the same
    nanosecond counts as arrived, in the order of the events.
    """

    strict = True

    def __init__(self, network: VirtualClock, config: LinkConfig, receive: Action, seed: str = "") -> None:
        super().__init__(network, config, receive, seed)
        self._queues: list[deque[tuple[Any, int, int, int]]] = [deque() for _ in range(CLASSES)]
        self._held = [0] * CLASSES  # waiting, in units of 1/rate_bps ns
        self._waiting = 0  # frames in all queues
        self._later: deque[tuple[Any, int]] = deque()  # frames that a switch's latency still holds
        self._serving: int | None = None  # the class of the frame on the wire, whose last bit leaves at …
        self._wire_ns = 0  # … _wire_ns + _wire_remainder / rate
        self._wire_remainder = 0

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """See `Link.send`. True also for a frame that is ready later: whether there is room will be seen then."""
        if ready_ns == self.network.now_ns and not self._later:
            return self._enqueue(frame, size_bytes, sender, to)
        self._later.append((frame, size_bytes))
        self.network.schedule(ready_ns, self._ready, None, sender, to)
        return True

    def _ready(self, _frame: None, sender: int, to: int) -> None:
        frame, size_bytes = self._later.popleft()
        self._enqueue(frame, size_bytes, sender, to)

    def backlog_of(self, kind: int) -> int:
        """Bytes of one class queued, without the frame on the wire."""
        return self._held[kind] // 8_000_000_000

    def _enqueue(self, frame: Any, size_bytes: int, sender: int, to: int) -> bool:
        now_ns, rate = self.network.now_ns, self._rate
        kind = BEST_EFFORT - (to >> CLASS_SHIFT & CLASS_MASK)
        units = size_bytes * 8_000_000_000
        held = self._held[kind]
        if self._serving == kind:
            held += (self._wire_ns - now_ns) * rate + self._wire_remainder
        if held and held + units > self._queue_cost:
            self.faults["drop_queue"] += 1
            return False
        if to & DROPPABLE and held > self._drop_cost:
            self.faults["drop_first"] += 1
            return False
        if to & ECT and (self._free_ns - now_ns) * rate + self._remainder > self._ecn_cost:
            to |= CE
            self.marked_frames += 1
        if self._free_ns < now_ns or (self._free_ns == now_ns and not self._remainder):
            self._free_ns, self._remainder = now_ns, 0
        self._free_ns, self._remainder = self._after(self._free_ns, self._remainder, size_bytes)
        self.sent_frames += 1
        self.sent_bytes += size_bytes
        self._held[kind] += units
        self._waiting += 1
        self._queues[kind].append((frame, size_bytes, sender, to))
        if self._wire_ns < now_ns and self._waiting == 1:  # the wire is idle: since when doesn't matter
            self._wire_ns, self._wire_remainder = now_ns, 0
            self._serve()
        elif self._serving is None:  # it fell idle within this very nanosecond
            self._serve()
        return True

    def _after(self, time_ns: int, remainder: int, size_bytes: int) -> tuple[int, int]:
        """When a frame that begins at time_ns + remainder / rate has left."""
        cost = self._cost.get(size_bytes)
        if cost is None:
            cost = self._cost[size_bytes] = divmod(size_bytes * 8_000_000_000, self._rate)
        time_ns += cost[0]
        remainder += cost[1]
        return (time_ns + 1, remainder - self._rate) if remainder >= self._rate else (time_ns, remainder)

    def _idle(self, _frame: None, _sender: int, _to: int) -> None:
        if self._wire_ns + (1 if self._wire_remainder else 0) <= self.network.now_ns:  # else it has work again
            self._serve()

    def _serve(self) -> None:
        """The wire is idle: put the most urgent frame on it."""
        self._serving = next((kind for kind, queue in enumerate(self._queues) if queue), None)
        if self._serving is None:
            return
        frame, size_bytes, sender, to = self._queues[self._serving].popleft()
        self._waiting -= 1
        self._held[self._serving] -= size_bytes * 8_000_000_000
        self._wire_ns, self._wire_remainder = self._after(self._wire_ns, self._wire_remainder, size_bytes)
        idle_ns = self._wire_ns + (1 if self._wire_remainder else 0)
        arrival_ns = idle_ns + self._delay_ns
        if self._tail is not None:
            arrival_ns = self._tail.arrival_ns(arrival_ns, self._cost[size_bytes][0])
        self._deliver(arrival_ns, frame, size_bytes, sender, to)
        self.network.schedule(idle_ns, self._idle)
