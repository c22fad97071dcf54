"""How a link was shared: what each of its users had of it over time, Jain's index, and its queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emulation.sim.network.link import Link

Counter = Callable[[], int]


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (Σx)² / (n Σx²): 1 where all have the same, 1/n where one has all; 1 of nothing."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def percentile(values: Sequence[int], part: float) -> int:
    """The least value that at least `part` of them don't exceed; 0 of none."""
    if not values:
        return 0
    return sorted(values)[min(len(values) - 1, max(0, -(-int(part * len(values) * 1_000_000) // 1_000_000) - 1))]


@dataclass
class SharedLink:
    """One direction of a link. users: by name, bytes on the wire so far; `sample` every bin_ns, from the start on.

    bytes: per user, in each bin. queue: bytes waiting at each of the samples' instants.
    """

    link: Link
    users: dict[str, Counter]
    bin_ns: int
    bytes: dict[str, list[int]] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    _before: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Sample from now on."""
        for name, counter in self.users.items():
            self.bytes[name], self._before[name] = [], counter()
        self._later()

    def _later(self) -> None:
        network = self.link.network
        network.schedule(network.now_ns + self.bin_ns, self._sample)

    def _sample(self, _frame: None, _sender: int, _to: int) -> None:
        for name, counter in self.users.items():
            now = counter()
            self.bytes[name].append(now - self._before[name])
            self._before[name] = now
        self.queue.append(self.link.backlog_bytes(self.link.network.now_ns))
        self._later()

    def shares(self, from_ns: int = 0, to_ns: int | None = None) -> dict[str, int]:
        """Bytes of each user between two instants since the start, rounded to bins."""
        first, end = from_ns // self.bin_ns, None if to_ns is None else to_ns // self.bin_ns
        return {name: sum(counts[first:end]) for name, counts in self.bytes.items()}

    def jain(self, from_ns: int = 0, to_ns: int | None = None) -> float:
        """Of `shares`."""
        return jain(list(self.shares(from_ns, to_ns).values()))

    def converged_ns(self, span_bins: int = 10, at_least: float = 0.9) -> int | None:
        """From when on Jain's index over span_bins stays at least so great on average; None: never."""
        counts = list(self.bytes.values())
        spans = range(0, len(self.queue) - span_bins + 1, span_bins)
        good = [jain([sum(each[at : at + span_bins]) for each in counts]) >= at_least for at in spans]
        if not good or not good[-1]:
            return None
        since = max((place + 1 for place, fine in enumerate(good) if not fine), default=0)
        return since * span_bins * self.bin_ns
