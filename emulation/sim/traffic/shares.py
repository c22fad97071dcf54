"""How a link was shared: what each of its users had of it over time, Jain's index, and its queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from emulation.sim.network.link import Link
from emulation.sim.network.network import Network

QUEUE_NS = 1_000_000  # between two looks at the queue
BINS_MOST = 100
FAIR = 0.9


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (Σx)² / (n Σx²): 1 where all have the same, 1/n where one has all; 1 of nothing."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def percentile(values: Sequence[int], part: float) -> int:
    """The least value that at least `part` of them don't exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


@dataclass
class SharedLink:
    """One direction of a link. user_of(frame, sender, to): who a frame is of, and its bytes on the wire. equals:
    those of whom each should have the same, once all have begun, at from_ns. `watch` when all hosts are attached.
    """

    name: str
    link: Link
    equals: tuple[str, ...]
    user_of: Callable[[Any, int, int], tuple[str, int]]
    from_ns: int = 0
    queue: list[int] = field(default_factory=list)
    _bytes: dict[str, int] = field(default_factory=dict)
    _over_time: list[dict[str, int]] = field(default_factory=list)  # every ten looks at the queue: until then

    def watch(self) -> None:
        """Count from now on."""
        receive, user_of, counted = self.link.receive, self.user_of, self._bytes

        def counting(frame: Any, sender: int, to: int) -> None:
            user, size_bytes = user_of(frame, sender, to)
            counted[user] = counted.get(user, 0) + size_bytes
            receive(frame, sender, to)

        self.link.receive = counting
        self._look(None, 0, 0)

    def _look(self, _frame: None, _sender: int, _to: int) -> None:
        time: Network = self.link.network
        if len(self.queue) % 10 == 0:
            self._over_time.append(dict(self._bytes))
        self.queue.append(self.link.backlog_bytes(time.now_ns))
        time.schedule(time.now_ns + QUEUE_NS, self._look)

    def document(self) -> dict[str, Any]:
        """As `results_schema.md` has a shared link."""
        looks = [*self._over_time, dict(self._bytes)]
        start = min(-(-self.from_ns // (10 * QUEUE_NS)), len(looks) - 1)
        step = max(1, -(-(len(looks) - 1) // BINS_MOST))
        ends = [*looks[::step], *([looks[-1]] if (len(looks) - 1) % step else [])]
        users = sorted(self._bytes, key=lambda user: (user not in self.equals, user))
        over_time = {user: [b.get(user, 0) - a.get(user, 0) for a, b in pairwise(ends)] for user in users}
        total = {user: looks[-1].get(user, 0) - looks[start].get(user, 0) for user in users}
        queue = self.queue[10 * start :]
        return {
            "link": self.name,
            "bytes": total,
            "jain": jain([total.get(user, 0) for user in self.equals]),
            "bin_ns": 10 * step * QUEUE_NS,
            "bytes_over_time": over_time,
            "queue_p50_bytes": percentile(queue, 0.5),
            "queue_p99_bytes": percentile(queue, 0.99),
            "converged_ns": self._converged_ns(over_time, 10 * step * QUEUE_NS),
        }

    def _converged_ns(self, over_time: dict[str, list[int]], bin_ns: int) -> int | None:
        """From when on, counted from from_ns, the index over ten bins stays at least FAIR; None: never."""
        counts = [over_time.get(user, []) for user in self.equals]
        first = -(-self.from_ns // bin_ns)
        spans = range(first, min(map(len, counts), default=0) - 9)
        unfair = [at for at in spans if jain([sum(each[at : at + 10]) for each in counts]) < FAIR]
        if not spans or (unfair and unfair[-1] == spans[-1]):
            return None
        return (unfair[-1] + 1 - first) * bin_ns if unfair else 0
