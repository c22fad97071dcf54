"""Flows beside jobs on a switched network: long ones, short ones of web-like sizes, incast; and what became of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from emulation.results.shares import FinishedFlow
from emulation.scenario.scenario_flows import Arrival, Arrivals, user_of
from emulation.scenario.scenario_tables import RDMA_CONTROLS, FlowOptions
from emulation.sim.lossless.simulated_queue_pair import PAYLOAD_BYTES, SimulatedQueuePair
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.sim.traffic.connection import Connections, TcpConnection
from emulation.sim.traffic.controls import control
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.sender import TcpSender


class FlowGroup(NamedTuple):
    """An entry of `[[flows]]` with the names of its hosts. Flows take the sources in turn."""

    options: FlowOptions
    sources: tuple[str, ...]
    to: str


class BackgroundTraffic:
    """All flows of a run, which begin when `Arrivals` says; what became of them is by place in `entries`. `load` is of
    the link to the receiver.
    """

    def __init__(
        self, network: SwitchedNetwork, entries: Sequence[FlowGroup], seed: int = 1, rdma_bytes: int = PAYLOAD_BYTES
    ) -> None:
        self.entries = tuple(entries)
        self.connections: list[list[TcpConnection | SimulatedQueuePair]] = [[] for _ in entries]  # of flows without end
        self.finished: list[list[FinishedFlow]] = [[] for _ in entries]
        self.names: dict[int, str] = {}  # of users of links, by flow
        self.running: list[set[TcpConnection | SimulatedQueuePair]] = [
            set() for _ in entries
        ]  # of those that have an end
        self._ended_counters: list[dict[str, int]] = [{} for _ in entries]
        self._network = network
        self._seed = seed
        self._rdma_bytes = rdma_bytes  # of a packet of RoCE
        self._everything = Connections()
        self._addresses: dict[str, int] = {}
        self._flows = 0
        for place, (options, sources, to) in enumerate(entries):
            for host in (*sources, to):
                if host not in self._addresses:
                    self._addresses[host] = network.addresses([host])
                    network.attach(host, self._addresses[host], self._everything.receive)
            rate_bps = network.downlink(to).config.rate_bps
            self._await(place, iter(Arrivals.of(options, len(sources), rate_bps, seed, place)))

    def counters(self, place: int) -> dict[str, int]:
        """The counters of all senders together."""
        total = dict(self._ended_counters[place])
        for connection in (*self.connections[place], *self.running[place]):
            for name, count in connection.counters.items():
                total[name] = total.get(name, 0) + count
        return total

    def _new(
        self, place: int, source: str, ended: Callable[[TcpConnection | SimulatedQueuePair], None] | None
    ) -> TcpConnection | SimulatedQueuePair:
        (options, _, to), network, flow = self.entries[place], self._network, self._flows
        self._flows += 1
        name = options.kind if options.endless else options.congestion
        every = [entry.options for entry in self.entries]
        self.names[flow] = user_of(every, place, len(self.connections[place]))
        ends = self._addresses[source], self._addresses[to]
        links = network.uplink(source), network.uplink(to)
        connection: TcpConnection | SimulatedQueuePair
        if name in RDMA_CONTROLS:
            connection = SimulatedQueuePair(flow, links, ends, ends[::-1], control=name, payload_bytes=self._rdma_bytes)
        else:
            sender = TcpSender(flow, control(name, f"{self._seed} flow {flow}"), ecn=bool(options.ecn))
            destinations = ends[1] | network.tcp_bits, ends[0] | network.tcp_bits
            connection = TcpConnection(sender, TcpReceiver(flow), links, ends, destinations)
        if ended is not None:
            connection.ended = lambda: ended(connection)
        self._everything.add(connection)
        return connection

    def _await(self, place: int, coming: Iterator[Arrival]) -> None:
        """Begins the flows of an entry when each is due, those that are due at once in one event."""
        options, sources, _ = self.entries[place]
        due = next(coming, None)

        def arrive(_frame: None, _sender: int, _to: int) -> None:
            nonlocal due
            while due is not None and due.at_ns <= self._network.time.now_ns:
                source = sources[due.source]
                if options.endless:
                    self._begin_long(place, source)
                else:
                    self._send(place, source, due.size_bytes)
                due = next(coming, None)
            if due is not None:
                self._network.time.schedule(due.at_ns, arrive)

        if due is not None:
            self._network.time.schedule(due.at_ns, arrive)

    def _begin_long(self, place: int, source: str) -> None:
        connection, stop_ns = self._new(place, source, None), self.entries[place].options.stop_ns
        connection.write(None)
        connection.open()
        self.connections[place].append(connection)
        if stop_ns:
            self._network.time.schedule(stop_ns, lambda _frame, _sender, _to: connection.stop())

    def _send(self, place: int, source: str, size_bytes: int) -> None:
        """A flow with an end."""

        def ended(connection: TcpConnection | SimulatedQueuePair) -> None:
            time_ns = self._network.time.now_ns - connection.opened_ns
            self.finished[place].append(FinishedFlow(size_bytes, time_ns))
            for name, count in connection.counters.items():
                self._ended_counters[place][name] = self._ended_counters[place].get(name, 0) + count
            self.running[place].discard(connection)
            self._everything.remove(connection.flow)
            connection.stop()

        connection = self._new(place, source, ended)
        connection.write(-(-size_bytes // connection.payload_bytes))
        connection.open()
        self.running[place].add(connection)
