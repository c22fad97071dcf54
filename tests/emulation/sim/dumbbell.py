"""Senders on one switch, receivers on another, one slow link between them: see `Dumbbell`."""

from emulation.sim.network.simulated_link import NODE_MASK, LinkConfig
from emulation.sim.network.virtual_clock import VirtualClock
from emulation.sim.traffic.connection import CE, ECT, Connections, TcpConnection
from emulation.sim.traffic.controls import control
from emulation.sim.traffic.receiver import TcpReceiver
from emulation.sim.traffic.segments import TransportSegment
from emulation.sim.traffic.sender import PAYLOAD_BYTES, TcpSender
from tests.oracles.oracle_links import OracleLink


class Marking(OracleLink):
    """Marks above `above_bytes`, 0: never; loses data segments whose numbers are in `lose`, each once."""

    above_bytes = 0

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.lose: set[int] = set()

    def send(self, frame: TransportSegment, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        if frame.number in self.lose:
            self.lose.remove(frame.number)
            return False
        if self.above_bytes and to & ECT and self.backlog_bytes(ready_ns) > self.above_bytes:
            to |= CE
        return super().send(frame, size_bytes, ready_ns, sender, to)


class Dumbbell:
    """Connection i: from host i to n + i; a round trip of 6 · delay_ns; all other links are ten times as fast."""

    def __init__(self, kinds, *, rate_bps=20_000_000, delay_ns=2_000_000, queue_bytes=40_000, mark_bytes=0) -> None:
        self.network = network = VirtualClock()
        self.connections = []
        everything, count = Connections(), len(kinds)
        fast = LinkConfig(10 * rate_bps, delay_ns, 10_000_000)
        ways: list[list[OracleLink]] = [[], []]
        near, far = (self._switch(ports) for ports in ways)
        self.slow = Marking(network, LinkConfig(rate_bps, delay_ns, queue_bytes), far)
        self.slow.above_bytes = mark_bytes
        back = OracleLink(network, fast, near)
        down = [OracleLink(network, fast, everything.receive) for _ in range(2 * count)]
        ways[0] += down[:count] + [self.slow] * count
        ways[1] += [back] * count + down[count:]
        for flow, kind in enumerate(kinds):
            links = OracleLink(network, fast, near), OracleLink(network, fast, far)
            sender, nodes = TcpSender(flow, control(kind, str(flow)), ecn=mark_bytes > 0), (flow, count + flow)
            made = TcpConnection(sender, TcpReceiver(flow), links, nodes, nodes[::-1])
            everything.add(made)
            self.connections.append(made)
            network.schedule(flow * 1_000_000, lambda *_, made=made: made.open())

    def _switch(self, ports: list[OracleLink]):
        def receive(frame: TransportSegment, sender: int, to: int) -> None:
            ports[to & NODE_MASK].send(frame, frame.wire_bytes, self.network.now_ns + 1_000, sender, to)

        return receive

    def run(self, seconds: float) -> None:
        """So much more virtual time."""
        end_ns = self.network.now_ns + int(seconds * 1e9)
        self.network.schedule(end_ns, lambda *_: self.network.stop())
        self.network.run()

    def goodputs(self, seconds: float, skipped: float = 0) -> list[float]:
        """Endless flows: bit/s of each, after `skipped` seconds."""
        for one in self.connections:
            one.write(None)
        self.run(skipped)
        before = [one.receiver.received for one in self.connections]
        self.run(seconds)
        return [
            (one.receiver.received - count) * PAYLOAD_BYTES * 8 / seconds
            for one, count in zip(self.connections, before, strict=True)
        ]
