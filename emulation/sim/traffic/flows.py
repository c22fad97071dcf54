"""Flows beside jobs on a switched network: long ones, short ones of web-like sizes, incast; and what became of them."""

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from emulation.scenario_tables import INCAST, SHORT, FlowOptions
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.sim.traffic.connection import Connection, Connections
from emulation.sim.traffic.controls import control
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.sender import PAYLOAD_BYTES, TcpSender

# The web search of DCTCP (Alizadeh 2010, figure 4): bytes, and which part of the flows is no larger.
WEB_SEARCH = (
    (0, 0.0),
    (10_000, 0.15),
    (20_000, 0.20),
    (30_000, 0.30),
    (50_000, 0.40),
    (80_000, 0.53),
    (200_000, 0.60),
    (1_000_000, 0.70),
    (2_000_000, 0.80),
    (5_000_000, 0.90),
    (10_000_000, 0.97),
    (30_000_000, 1.0),
)


class Flows(NamedTuple):
    """An entry of `[[flows]]` with the names of its hosts. Flows take the sources in turn."""

    options: FlowOptions
    sources: tuple[str, ...]
    to: str


def web_size_bytes(chance: float, most_bytes: int) -> int:
    """A size whose place among all of at most most_bytes is chance, 0 … 1; between the given points a line."""
    sizes, parts = zip(*WEB_SEARCH, strict=True)

    def at(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
        place = min(max(1, bisect.bisect_left(xs, x)), len(xs) - 1)
        part = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
        return ys[place - 1] + part * (ys[place] - ys[place - 1])

    whole = at(min(most_bytes, sizes[-1]), sizes, parts)
    return max(1, int(at(chance * whole, parts, sizes)))


def mean_web_bytes(most_bytes: int, steps: int = 1_000) -> float:
    """Of the sizes that `web_size_bytes` gives."""
    return sum(web_size_bytes((step + 0.5) / steps, most_bytes) for step in range(steps)) / steps


@dataclass
class Finished:
    """A flow that had an end: its size and how long it took, the handshake included."""

    size_bytes: int
    time_ns: int


class Traffic:
    """All flows of a run, which begin when they are due; what became of them is by place in `entries`.

    "short" flows arrive at random (Poisson) with `load` of the rate of the receiver's link; "incast" begins `count` at
    once, every period_ns; all others are without end.
    """

    def __init__(self, network: SwitchedNetwork, entries: Sequence[Flows], seed: int = 1) -> None:
        self.entries = tuple(entries)
        self.connections: list[list[Connection]] = [[] for _ in entries]  # of flows without end
        self.finished: list[list[Finished]] = [[] for _ in entries]
        self.names: dict[int, str] = {}  # of users of links, by flow
        self._ended_counters: list[dict[str, int]] = [{} for _ in entries]  # of flows that have an end
        self._running: list[set[Connection]] = [set() for _ in entries]
        self._network = network
        self._seed = seed
        self._everything = Connections()
        self._addresses: dict[str, int] = {}
        self._flows = 0
        begins = {SHORT: self._next_short, INCAST: self._incast}
        for place, (options, sources, to) in enumerate(entries):
            for host in (*sources, to):
                if host not in self._addresses:
                    self._addresses[host] = network.addresses([host])
                    network.attach(host, self._addresses[host], self._everything.receive)
            begin = begins.get(options.kind, self._begin_long)
            network.time.schedule(options.start_ns, _ignoring(begin, place))

    def name(self, place: int, number: int) -> str:
        """What a flow is called as a user of links: those that have an end go by their kind."""
        kind = self.entries[place].options.kind
        if not self.entries[place].options.endless:
            return kind
        before = sum(flows.options.count for flows in self.entries[:place] if flows.options.kind == kind)
        return f"{kind} {before + number + 1}"

    def counters(self, place: int) -> dict[str, int]:
        """What the senders counted, all together."""
        total = dict(self._ended_counters[place])
        for one in (*self.connections[place], *self._running[place]):
            for name, count in one.sender.counters.items():
                total[name] = total.get(name, 0) + count
        return total

    def _new(self, place: int, source: str, ended: Callable[[Connection], None] | None) -> Connection:
        (options, _, to), network, flow = self.entries[place], self._network, self._flows
        self._flows += 1
        name = options.kind if options.endless else options.congestion
        self.names[flow] = self.name(place, len(self.connections[place]))
        sender = TcpSender(flow, control(name, f"{self._seed} flow {flow}"), ecn=bool(options.ecn))
        ends = self._addresses[source], self._addresses[to]
        links = network.uplink(source), network.uplink(to)
        made = Connection(sender, TcpReceiver(flow), links, ends, ends[::-1])
        if ended is not None:
            made.ended = lambda: ended(made)
        self._everything.add(made)
        return made

    def _begin_long(self, place: int) -> None:
        options, sources, _ = self.entries[place]
        for number in range(options.count):
            made = self._new(place, sources[number % len(sources)], None)
            made.write(None)
            made.open()
            self.connections[place].append(made)
            if options.stop_ns:
                self._network.time.schedule(options.stop_ns, _ignoring(Connection.stop, made))

    def _over(self, options: FlowOptions) -> bool:
        return 0 < options.stop_ns <= self._network.time.now_ns

    def _next_short(self, place: int) -> None:
        (options, sources, to), network = self.entries[place], self._network
        chance = random.Random(f"{self._seed} short {place}").random
        rate = network.downlink(to).config.rate_bps * options.load / 8 / mean_web_bytes(options.most_bytes)

        def arrive(_: int) -> None:
            if self._over(options):
                return
            source = sources[int(chance() * len(sources))]
            self._send(place, source, web_size_bytes(chance(), options.most_bytes))
            wait()

        def wait() -> None:
            wait_ns = int(-math.log(1 - chance()) / rate * 1e9)
            network.time.schedule(network.time.now_ns + wait_ns, _ignoring(arrive, 0))

        wait()

    def _incast(self, place: int) -> None:
        (options, sources, _), time = self.entries[place], self._network.time
        if self._over(options):
            return
        for number in range(options.count):
            self._send(place, sources[number % len(sources)], options.size_bytes)
        time.schedule(time.now_ns + options.period_ns, _ignoring(self._incast, place))

    def _send(self, place: int, source: str, size_bytes: int) -> None:
        """A flow with an end."""

        def ended(made: Connection) -> None:
            time_ns = self._network.time.now_ns - made.opened_ns
            self.finished[place].append(Finished(size_bytes, time_ns))
            for name, count in made.sender.counters.items():
                self._ended_counters[place][name] = self._ended_counters[place].get(name, 0) + count
            self._running[place].discard(made)
            self._everything.remove(made.sender.flow)
            made.stop()

        made = self._new(place, source, ended)
        made.write(-(-size_bytes // PAYLOAD_BYTES))
        made.open()
        self._running[place].add(made)


def _ignoring(action: Callable[..., None], argument: object) -> Callable[[object, int, int], None]:
    """As an event of a Network."""
    return lambda _frame, _sender, _to: action(argument)
