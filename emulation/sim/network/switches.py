"""Switches: a bridge that forwards, and one that aggregates. Both are store and forward."""

from collections.abc import Sequence
from typing import Any, Protocol

from emulation.sim.network.link import AHEAD, IP_BYTES, NODE_MASK, UDP_FRAMING_BYTES, CorruptedFrame, Link
from emulation.sim.network.network import Network
from switchagg.dataplane.contract import DataPlane
from transport.links.ethernet import ETHERNET_BYTES


class Switch(Protocol):
    """A switch of a simulation."""

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame whose last bit is there."""


class Bridge:
    """Forwards every frame to the port it is addressed to, damaged ones too: checking is the receiver's work.

    `ports[node]` is the link on the way to that member or aggregating switch; latency_ns is the time from a frame's
    last bit in to its place in the queue.
    """

    def __init__(self, network: Network, ports: Sequence[Link], latency_ns: int) -> None:
        self._network = network
        self._ports = ports
        self._latency_ns = latency_ns

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame from `sender` for `to`. Its bytes begin after the IP header."""
        size_bytes = len(frame) + ETHERNET_BYTES + IP_BYTES
        port = self._ports[to & NODE_MASK]
        send = port.send_ahead if to & AHEAD else port.send
        send(frame, size_bytes, self._network.now_ns + self._latency_ns, sender, to)


class PacketBridge(Bridge):
    """The same for packets of method `switch`: frames (1, size) uint8, whose bytes begin after the UDP header."""

    def receive(self, frame: Any, sender: int, to: int) -> None:
        size_bytes = (len(frame) if frame.__class__ is CorruptedFrame else frame.size) + UDP_FRAMING_BYTES
        self._ports[to & NODE_MASK].send(frame, size_bytes, self._network.now_ns + self._latency_ns, sender, to)


class AggregationSwitch:
    """Hosts a data plane: one packet at a time, as they arrive; results enter the queues of their ports.

    `ports[node]` is the link on the way to that member or aggregator, by the number the data plane knows it by; number:
    its own. latency_ns: see `Bridge`.
    """

    def __init__(
        self, network: Network, ports: Sequence[Link], latency_ns: int, dataplane: DataPlane, number: int
    ) -> None:
        self.dataplane = dataplane
        self.drop_checksum = 0
        self._network = network
        self._ports = ports
        self._latency_ns = latency_ns
        self._number = number

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame (1, size) uint8 of `sender`, a worker or another aggregator."""
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self.drop_checksum += 1
                return
        ready_ns = self._network.now_ns + self._latency_ns
        kind = to & ~NODE_MASK  # a result has the class of the frame that caused it (S6)
        for output in self.dataplane.process(frame, sender):
            bundle = output.bundle
            count, size = bundle.shape
            size += UDP_FRAMING_BYTES
            for row in range(count):
                one = bundle[row : row + 1]
                for port in output.ports:
                    self._ports[port].send(one, size, ready_ns, self._number, port | kind)
