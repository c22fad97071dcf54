"""A link of virtual time that is watched: what each of its users has of it, and its queue."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emulation.results.shares import LOOK_NS, shared_link
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.network.simulated_link import Origin
from emulation.sim.network.virtual_clock import VirtualClock

QUEUE_NS = 1_000_000  # between two looks at the queue


@dataclass
class SharedLink:
    """A direction of a link. user_of: the owner of a frame. equals: those of whom each should have
    the same, once all have begun, at from_ns; spread: or those of them that cross it, a link of several on their way.
    `watch` when all hosts are attached.
    """

    name: str
    link: SimulatedLink
    equals: tuple[str, ...]
    user_of: Callable[[Origin], str]
    from_ns: int = 0
    spread: bool = False
    queue: list[int] = field(default_factory=list)
    _bytes: dict[str, int] = field(default_factory=dict)
    _take: Callable[[], None] = lambda: None
    _over_time: list[dict[str, int]] = field(default_factory=list)  # every LOOK_NS: until then

    @property
    def shared(self) -> bool:
        """Whether the first of `equals` crosses it, and somebody else."""
        self._take()
        return not self.spread or (len(self._bytes) > 1 and self.equals[0] in self._bytes)

    def watch(self) -> None:
        """Count from now on."""
        user_of, counted = self.user_of, self._bytes

        def add(origin: Origin, size_bytes: int) -> None:
            user = user_of(origin)
            counted[user] = counted.get(user, 0) + size_bytes

        self._take = self.link.count(add)
        self._look(None, 0, 0)

    def _look(self, _frame: None, _sender: int, _to: int) -> None:
        time: VirtualClock = self.link.network
        if len(self.queue) * QUEUE_NS % LOOK_NS == 0:
            self._take()
            self._over_time.append(dict(self._bytes))
        self.queue.append(self.link.backlog_bytes(time.now_ns))
        time.schedule(time.now_ns + QUEUE_NS, self._look)

    def document(self) -> dict[str, Any]:
        """As `results_schema.md` has a shared link."""
        self._take()
        start = -(-self.from_ns // LOOK_NS) * LOOK_NS // QUEUE_NS
        looks = [*self._over_time, dict(self._bytes)]
        equals = [user for user in self.equals if not self.spread or user in self._bytes]
        return shared_link(self.name, looks, equals, self.from_ns, self.queue[start:])
