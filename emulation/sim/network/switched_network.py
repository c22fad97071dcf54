"""A topology's links and switches, each of them once, in virtual time: what jobs and other flows share.

Every sender and receiver has an *address*, a small integer: `to` and `sender` of frames. A host may have several, one
for each job that has a member there, and an aggregating switch has one. Switches forward by address.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import SPRAY, Hop, LinkSettings, Topology
from emulation.sim.network.aggregation_host import AggregationHost
from emulation.sim.network.mesh_host import MemberHost, MeshHost
from emulation.sim.network.simulated_link import (
    AHEAD,
    CE,
    IP_BYTES,
    NODE_MASK,
    UDP_FRAMING_BYTES,
    CorruptedFrame,
    LinkConfig,
    SimulatedLink,
)
from emulation.sim.network.strict_link import StrictLink
from emulation.sim.network.virtual_clock import Action, VirtualClock
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.spines.paths import HashedPaths, SprayedPaths
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import JobConfig
from switchagg.partial_endpoint import endpoint_of
from switchagg.wire import FLAG_RESULT, FLAGS_AT, MARKED, RANK_AT
from transport.links.ethernet import ETHERNET_BYTES

MESSAGE_FRAMING_BYTES = ETHERNET_BYTES + IP_BYTES
NO_ADDRESS = NODE_MASK
HOST_QUEUE_BYTES = 1 << 18  # credit of an uplink, two jumbo frames, and acknowledgements


class SimulatedSwitch:
    """Forwards every frame to the port it is addressed to, damaged ones too: checking is the receiver's work. The data
    plane processes frames that are addressed to the switch, a packet at a time, as they arrive; results enter the
    queues of their ports.

    `ports[address]` is the link on the way there, or those of several ways; latency_ns is the time from a frame's last
    bit in to its place in the queue. Packets of method `switch` are arrays (1, size) uint8, whose bytes begin after the
    UDP header; those of other frames begin after the IP header.
    """

    def __init__(self, time: VirtualClock, latency_ns: int) -> None:
        self.dataplane: DataPlane | None = None
        self.address = NO_ADDRESS
        self.ports: list[SimulatedLink | HashedPaths] = []
        self._drop_checksum = 0
        self._time = time
        self._latency_ns = latency_ns

    @property
    def drop_checksum(self) -> int:
        """Damaged frames for itself."""
        return self._drop_checksum

    def aggregate(self, dataplane: DataPlane, address: int) -> None:
        """From now on, for all jobs that are admitted there: children's ports are their addresses."""
        self.dataplane = dataplane
        self.address = address

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame whose last bit is there."""
        if to & NODE_MASK == self.address:
            self._process(frame, sender, to)
        elif (kind := frame.__class__) is np.ndarray:
            size_bytes = frame.size + UDP_FRAMING_BYTES
            self.ports[to & NODE_MASK].send(frame, size_bytes, self._time.now_ns + self._latency_ns, sender, to)
        else:
            packet = kind is CorruptedFrame and frame.shape is not None
            size_bytes = len(frame) + (UDP_FRAMING_BYTES if packet else MESSAGE_FRAMING_BYTES)
            port = self.ports[to & NODE_MASK]
            send = port.send_ahead if to & AHEAD else port.send
            send(frame, size_bytes, self._time.now_ns + self._latency_ns, sender, to)

    def _process(self, frame: Any, sender: int, to: int) -> None:
        if frame.__class__ is CorruptedFrame:
            frame = frame.received()
            if frame is None:
                self._drop_checksum += 1
                return
        assert self.dataplane is not None
        ready_ns = self._time.now_ns + self._latency_ns
        if to & CE and not frame[0, FLAGS_AT] & FLAG_RESULT:  # G2
            frame, to = frame.copy(), to & ~CE
            frame[0, RANK_AT] |= MARKED
        kind = to & ~NODE_MASK  # a result has the class of the frame that caused it (S6), and its ECN bits (G4)
        for output in self.dataplane.process(frame, sender):
            bundle = output.bundle
            count, size = bundle.shape
            size += UDP_FRAMING_BYTES
            for row in range(count):
                packet = bundle[row : row + 1]
                for port in output.ports:
                    self.ports[port].send(packet, size, ready_ns, self.address, port | kind)


class SwitchedNetwork:
    """All jobs of a run have one. `time` is the clock of everything in it, `links` go by direction, `switches` by name.

    link: what all links have in common, faults above all; each has rate, delay and queue of its own, and faults drawn
    from seed. tail_at: a host whose links alone have the tail. latency_ns: of every switch, see `SimulatedSwitch`.
    strict: links serve priority classes strictly. paths: how switches spread what has several ways. trace: as of
    Network. An address's frames must find its host attached. users, users_at: what jobs are called, by number and by
    the addresses of their members. tcp_bits: the class of flows' TCP, in the `to` of its frames. documents: what a
    run's results have from those that are on it, beside the measured job.
    """

    def __init__(
        self,
        topology: Topology,
        link: LinkConfig,
        *,
        tail_at: str | None = None,
        latency_ns: int = 0,
        seed: int = 1,
        strict: bool = False,
        paths: str = SPRAY,
        trace: bool = False,
    ) -> None:
        self.topology = topology
        self.time = self._clock(trace)
        self.switches = {name: self._switch(latency_ns) for name in topology.switches}
        self.links: dict[Hop, SimulatedLink] = {}
        self._link, self._seed, self._tail_at = link, seed, tail_at
        self._kind = StrictLink if strict else SimulatedLink
        for hop, settings in topology.hops:
            self.links[hop] = self._build_link(hop, settings)
        self.users: dict[int, str] = {}
        self.users_at: dict[int, str] = {}
        self.tcp_bits = 0
        self.documents: list[Callable[[], dict[str, Any]]] = []
        self._hosts: dict[str, dict[int, Action]] = {}  # by name: what its addresses do with a frame
        self._names: list[str] = []  # of nodes, by address
        self._spread = SprayedPaths if paths == SPRAY else HashedPaths
        self._several: dict[tuple[Hop, ...], HashedPaths] = {}

    def _clock(self, trace: bool) -> VirtualClock:
        return VirtualClock(trace=trace)

    def _switch(self, latency_ns: int) -> SimulatedSwitch:
        return SimulatedSwitch(self.time, latency_ns)

    def uplink(self, host: str) -> SimulatedLink:
        """From a host to its switch."""
        return self.links[host, self.topology.neighbours[host][0]]

    def downlink(self, host: str) -> SimulatedLink:
        """From its switch to a host."""
        return self.links[self.topology.neighbours[host][0], host]

    def addresses(self, nodes: Sequence[str]) -> int:
        """The first of new addresses, one after the other, of these nodes: of a host for a member of a job."""
        first = len(self._names)
        for node in nodes:
            for name, switch in self.switches.items():
                somewhere = self.topology.neighbours[name][:1]  # to itself a switch sends nothing
                switch.ports.append(
                    self._port(name, self.topology.next_hops(name, node) if node != name else somewhere)
                )
        self._names += nodes
        return first

    def _port(self, name: str, to: Sequence[str]) -> SimulatedLink | HashedPaths:
        """From a switch to the only one of its neighbours on the way, or to any of several."""
        hops = tuple((name, node) for node in to)
        if len(hops) == 1:
            return self.links[hops[0]]
        if hops not in self._several:
            self._several[hops] = self._spread([self.links[hop] for hop in hops], self._seed, self._who)
        return self._several[hops]

    def _who(self, address: int) -> str:
        return f"{self.users_at.get(address, '')} {self._names[address]}"

    def path(self, sender: str, to: str, ends: tuple[int, int], flow: int = 0) -> list[Hop]:
        """The links that frames of a flow between these addresses cross, in order; where frames take several paths, one
        of these."""
        nodes = [sender]
        while nodes[-1] != to:
            hops = self.topology.next_hops(nodes[-1], to)
            port = self.switches[nodes[-1]].ports[ends[1]] if len(hops) > 1 else None
            nodes.append(hops[port.place((*ends, flow))] if isinstance(port, HashedPaths) else hops[0])
        return list(pairwise(nodes))

    def attach(self, host: str, address: int, receive: Action) -> None:
        """receive(frame, sender, to): what an address of a host does with frames for it."""
        there = self._hosts.setdefault(host, {})
        there[address] = receive
        self.uplink(host).users = len(there)
        self.downlink(host).receive = receive if len(there) == 1 else _shared(there)

    def aggregator(self, name: str, make: Callable[[], DataPlane]) -> SimulatedSwitch:
        """A switch that aggregates: with a data plane, made for the first job that asks, and an address."""
        switch = self.switches[name]
        if switch.dataplane is None:
            switch.aggregate(make(), self.addresses([name]))
        return switch

    def plane(self, slots: int, elements: int, name: str) -> DataPlane:
        """A data plane for one of its switches."""
        return DATAPLANES[name](slots, elements)

    def endpoint(self, job: JobConfig, rank: int, wire_rank: int) -> Any:
        """An endpoint for one of its hosts."""
        return endpoint_of(job, rank, wire_rank)

    def host(self, *args: Any) -> AggregationHost:
        """A worker of method `switch`; arguments: as of AggregationHost."""
        return AggregationHost(*args)

    def mesh_host(self, *args: Any, **how: Any) -> MemberHost:
        """A member of a host method; arguments: as of MeshHost."""
        return MeshHost(*args, **how)

    def keep_values(self) -> None:
        """Some of its jobs check their sums: arrays without values are zeros from now on."""

    def array(self, array: NDArray[Any] | SizeOnlyArray, filled: bool = False) -> NDArray[Any]:
        """The array that method `switch` sums for a call. filled: the call needs its values."""
        return array.zeros() if isinstance(array, SizeOnlyArray) else array

    def faults(self) -> dict[str, int]:
        """Fault counters, summed over all links."""
        links = list(self.links.values())
        return {name: sum(link.faults[name] for link in links) for name in links[0].faults}

    def _build_link(self, hop: Hop, settings: LinkSettings) -> SimulatedLink:
        """A direction of a link. A host never overflows its own queue: `HostUplink` waits instead."""
        hosts, (sender, to) = self.topology.hosts, hop
        queue_bytes, drop_bytes, name = settings.queue_bytes, self._link.drop_bytes, f"{sender} to {to}"
        common = self._link
        if sender in hosts:
            queue_bytes, drop_bytes, name = max(queue_bytes, HOST_QUEUE_BYTES), None, f"up {hosts.index(sender)}"
        elif to in hosts:
            name = f"down {hosts.index(to)}"
        if (sender in hosts or to in hosts) and {*hop} & {*self.topology.inside}:
            common = LinkConfig(1)  # nothing goes wrong inside a host
        config = replace(
            common,
            rate_bps=settings.rate_bps,
            delay_ns=settings.delay_ns,
            queue_bytes=queue_bytes,
            drop_bytes=drop_bytes,
        )
        if self._tail_at is not None and self._tail_at not in hop:
            config = replace(config, tail=None)
        return self._joined(config, f"{self._seed} {name}", hop)

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> SimulatedLink:
        link = self._kind(self.time, config, _nobody, seed)
        if hop[1] in self.switches:
            link.receive = self.switches[hop[1]].receive
        return link


def _shared(actions: dict[int, Action]) -> Action:
    """A host with several addresses hands a frame to the receiver of its address."""

    def receive(frame: object, sender: int, to: int) -> None:
        actions[to & NODE_MASK](frame, sender, to)

    return receive


def _nobody(_frame: object, _sender: int, to: int) -> None:
    raise AssertionError(f"a frame for address {to & NODE_MASK}, whose host is not attached")
