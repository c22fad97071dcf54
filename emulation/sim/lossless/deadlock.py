"""Deadlocks of lossless networks: buffers in a circle, found in routes before a run, and ports that stay paused."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from emulation.scenario.topologies.topology import Hop
from emulation.sim.lossless.pausing import PausableLink
from emulation.sim.network.virtual_clock import SimulationError, VirtualClock

CHECKS = 4  # within the time after which a port counts as stuck


def buffer_cycle(routes: Iterable[Sequence[Hop]]) -> list[Hop]:
    """Directions of links, each of which waits for the next one and the last for the first, as frames on these routes
    may; empty if there are none. Without such a cycle no set of pauses lasts."""
    following: dict[Hop, set[Hop]] = {}
    for route in routes:
        for here, there in pairwise(route):
            following.setdefault(here, set()).add(there)
    return _cycle({hop: sorted(after) for hop, after in sorted(following.items())})


def _cycle(following: dict[Hop, list[Hop]]) -> list[Hop]:
    done: set[Hop] = set()
    for start in following:
        path: list[Hop] = []
        ahead = [iter([start])]
        while ahead:
            hop = next(ahead[-1], None)
            if hop is None:
                ahead.pop()
                if path:
                    done.add(path.pop())
            elif hop in path:
                return path[path.index(hop) :]
            elif hop not in done:
                path.append(hop)
                ahead.append(iter(following.get(hop, ())))
    return []


def refuse_cycles(routes: Iterable[Sequence[Hop]]) -> None:
    """SimulationError, naming the ports, if frames on these routes can wait for each other in a circle."""
    if cycle := buffer_cycle(routes):
        ports = ", ".join("-".join(hop) for hop in cycle)
        raise SimulationError(
            f"lossless links could deadlock: these ports may wait for each other in a circle: {ports}"
        )


class DeadlockWatch:
    """Ends a run with SimulationError when a port has been paused for stuck_ns and nothing left the buffer behind it.

    links: all of the network. The error names a circle of paused ports, or, where there is none, the port whose frames
    are held by its switch.
    """

    def __init__(self, network: VirtualClock, links: dict[Hop, PausableLink], stuck_ns: int) -> None:
        self._network = network
        self._links = links
        self._stuck_ns = stuck_ns
        self._released: dict[tuple[Hop, int], tuple[int, int]] = {}  # how many had, and since when
        self._later()

    def _later(self) -> None:
        if not self._network.pending and self._network.now_ns:
            return  # nothing is left to happen, and the run shall end
        self._network.schedule(self._network.now_ns + self._stuck_ns // CHECKS, self._check)

    def _check(self, _frame: None, _sender: int, _to: int) -> None:
        for hop, link in self._links.items():
            for kind, since_ns in enumerate(link.paused_since_ns):
                if since_ns is not None and link.port is not None and self._is_stuck(hop, link, kind):
                    raise SimulationError(self._description(hop, kind))
        self._later()

    def _is_stuck(self, hop: Hop, link: PausableLink, kind: int) -> bool:
        assert link.port is not None
        released, now_ns = link.port.released[kind], self._network.now_ns
        before, since_ns = self._released.get((hop, kind), (-1, now_ns))
        if released != before:
            self._released[hop, kind] = released, now_ns
            return False
        return now_ns - since_ns >= self._stuck_ns

    def _description(self, hop: Hop, kind: int) -> str:
        paused = [port for port, link in self._links.items() if link.paused_since_ns[kind] is not None]
        following = {port: [after for after in paused if self._waits(port, after, kind)] for port in paused}
        what = f"deadlock of lossless class {kind} at {self._network.now_ns} ns of virtual time: "
        if cycle := _cycle(following):
            return what + "these paused ports wait for each other: " + ", ".join("-".join(port) for port in cycle)
        while following[hop]:
            hop = following[hop][0]
        port = self._links[hop].port
        assert port is not None
        held = port.held_bytes[kind]
        return what + f"port {'-'.join(hop)} is paused for good: switch {hop[1]} holds {held} bytes that came in by it"

    def _waits(self, hop: Hop, after: Hop, kind: int) -> bool:
        port = self._links[hop].port
        return hop[1] == after[0] and port is not None and self._links[after].waits_for(port, kind)
