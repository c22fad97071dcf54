"""A host in Python and the queue of its link: its timer, and a bounded credit of bytes in that queue."""

from collections import deque
from collections.abc import Callable

from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.virtual_clock import VirtualClock

Done = Callable[[], None]
CREDIT_BYTES_MAX = 65_536
CREDIT_NS = 1_000_000  # a host keeps about this much sending time in its queue, as Linux's TCP small queues do


class ClassQueue:
    """A class's part of a strict link, for a host that keeps a credit of bytes in each class."""

    def __init__(self, network: VirtualClock, link: SimulatedLink, kind: int) -> None:
        self.config = link.config
        self.network = network
        self._link = link
        self._kind = kind

    @property
    def users(self) -> int:
        """As of the link."""
        return self._link.users

    def backlog_bytes(self, _now_ns: int) -> int:
        """See `SimulatedLink.backlog_of`."""
        return self._link.backlog_of(self._kind)

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """The earliest instant at which no more than size_bytes can be left: if no other class sends anything."""
        left = max(0, self._link.backlog_of(self._kind) - size_bytes)
        return self.network.now_ns - (-left * 8_000_000_000 // self.config.rate_bps)


class Alarm:
    """A timer that may be set earlier at any time. It may ring early: ask again what is due, and set it again."""

    def __init__(self, network: VirtualClock, ring: Done) -> None:
        self._network = network
        self._ring = ring
        self._at_ns: int | None = None

    def set(self, deadline_ns: int | None) -> None:
        """Ring at the deadline or before; None changes nothing."""
        if deadline_ns is not None and (self._at_ns is None or deadline_ns < self._at_ns):
            self._at_ns = max(deadline_ns, self._network.now_ns)
            self._network.schedule(self._at_ns, self._due)

    def _due(self, _frame: None, _sender: int, _to: int) -> None:
        if self._at_ns == self._network.now_ns:  # otherwise it was set to an earlier time, and has rung
            self._at_ns = None
            self._ring()


class HostUplink:
    """A host's queue to its link: holds a bounded credit of bytes, and asks for more when half of it is sent.

    So frames leave the protocol when they leave the host, not a window earlier, and no host overflows its own queue.
    Jobs on one host have a credit each, of their own bytes, so that they share the link.
    `give(limit)` sends up to `limit` frames of at most frame_bytes (framing included) and returns how many.
    credit_bytes: 0: about a millisecond of the link, as TCP's small queues keep.
    """

    def __init__(
        self,
        network: VirtualClock,
        link: SimulatedLink | ClassQueue,
        frame_bytes: int,
        give: Callable[[int], int],
        credit_bytes: int = 0,
    ) -> None:
        credit_bytes = credit_bytes or min(CREDIT_BYTES_MAX, link.config.rate_bps * CREDIT_NS // 8_000_000_000)
        self._credit_bytes = max(credit_bytes, 2 * frame_bytes)
        self._network = network
        self._link = link
        self._frame_bytes = frame_bytes
        self._give = give
        self._waiting = False
        self._handed: deque[tuple[int, int]] = deque()  # where jobs share the link: (when they have left, bytes) given

    def pump(self) -> None:
        """Send what the protocol has, as far as the credit goes; continues automatically."""
        if self._waiting:
            return
        alone = self._link.users == 1
        room = self._credit_bytes - (self._link.backlog_bytes(self._network.now_ns) if alone else self._job_backlog())
        limit = room // self._frame_bytes
        frames = self._give(limit) if limit > 0 else 0
        if not alone and frames:
            self._handed.append((self._link.time_at_backlog_ns(0), frames * self._frame_bytes))
        if frames < limit:
            return
        self._waiting = True
        wake_ns = self._link.time_at_backlog_ns(self._credit_bytes // 2) if alone else self._handed[0][0]
        self._network.schedule(max(wake_ns, self._network.now_ns), self._wake)

    def _job_backlog(self) -> int:
        while self._handed and self._handed[0][0] <= self._network.now_ns:
            self._handed.popleft()
        return sum(size_bytes for _, size_bytes in self._handed)

    def _wake(self, _frame: None, _sender: int, _to: int) -> None:
        self._waiting = False
        self.pump()
