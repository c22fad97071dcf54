"""What communicating costs a rank's host, and how fast one connection can be: by default nothing, and as its link.

A *transfer* is all that a host sends to one peer in one step of one call: a message of a collective's plan, however
many segments it travels in; a worker's part of a call for one server, and its answer; a call for the switch, and its
result. Each takes the sender's host `transfer_ns` before it leaves and the receiver's as much before it is used, one
after the other on each host: the overhead o of LogP (Culler et al., 1993), at both ends. What has come goes first.
"""

from collections.abc import Callable
from dataclasses import dataclass

from emulation.sim.network.network import Network

Done = Callable[[], None]


@dataclass(frozen=True)
class HostCosts:
    """transfer_ns: of each transfer, at either end. flow_bps: most of one connection, frames as links count them; 0: as
    much as its links. A worker of the switch has one connection."""

    transfer_ns: int = 0
    flow_bps: int = 0

    def __bool__(self) -> bool:
        return bool(self.transfer_ns or self.flow_bps)


FREE = HostCosts()


class Processor:
    """A host does one thing after the other, each in its time; what takes no time happens at once."""

    def __init__(self, network: Network) -> None:
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


class Pace:
    """One connection's frames at flow_bps at most: each begins when that of the one before it would have ended."""

    def __init__(self, flow_bps: int) -> None:
        self._rate = flow_bps
        self._free_ns = self._remainder = 0  # as of `Link`

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
