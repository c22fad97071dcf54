"""The network in Python, the oracle of the one in C: links, switches and hosts, event for event the same.

`oracle(config)` is a SimulationConfig whose simulations are on such a network.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from heapq import heappush
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import Hop
from emulation.sim.lossless.lossless_network import LosslessNetwork
from emulation.sim.network.endpoint_host import EndpointHost
from emulation.sim.network.simulated_link import CE, NODE_MASK, UDP_FRAMING_BYTES, LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import NO_ADDRESS, SwitchedNetwork
from emulation.sim.network.virtual_clock import Action, VirtualClock
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.spines.paths import HashedPaths, SprayedPaths
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.job import JobConfig
from switchagg.native.headers import SIM_SEQUENCE_BITS
from switchagg.partial_endpoint import endpoint_of
from switchagg.wire import FLAG_RESULT, FLAGS_AT, MARKED, RANK_AT
from tests.oracles.cpus import OracleCpus, OracleProgram
from tests.oracles.mesh_host import OracleMeshHost
from tests.oracles.oracle_links import CorruptedFrame, OracleLink, framing_bytes_of
from tests.oracles.pausing import Charges, OracleIngressPort, OraclePausableLink
from tests.oracles.strict_link import OracleStrictLink
from transport.bounded.bounded_packets import MAGIC


class OracleClock(VirtualClock):
    """A clock whose partitions number what they schedule; events of one instant happen in that order."""

    partitions = 1

    def partition(self) -> "OraclePartition":
        """The clock of another partition."""
        self.partitions += 1
        return OraclePartition(self, self.partitions - 1)


class OraclePartition:
    """The clock as the nodes of one partition see it."""

    def __init__(self, clock: OracleClock, number: int) -> None:
        self._clock, self._heap, self._sequence = clock, clock._heap, number << SIM_SEQUENCE_BITS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def schedule(self, time_ns: int, action: Action, frame: Any = None, sender: int = 0, to: int = 0) -> None:
        """As of the clock."""
        assert time_ns >= self._clock.now_ns
        self._sequence += 1
        heappush(self._heap, (time_ns, self._sequence, action, frame, sender, to))


class OraclePaths(HashedPaths):
    """As `HashedPaths`, and sends."""

    def link(self, frame: Any, _ready_ns: int, sender: int, to: int) -> OracleLink:
        """The one that a frame takes."""
        links = cast(Sequence[OracleLink], self.links)
        return links[self.place((sender, to & NODE_MASK, getattr(frame, "flow", 0)))]

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """As of `OracleLink`."""
        return self.link(frame, ready_ns, sender, to).send(frame, size_bytes, ready_ns, sender, to)


class OracleSprayedPaths(OraclePaths):
    """A frame takes the link with the shortest queue here, whatever its flow; equal links take turns."""

    _turn = 0

    def place(self, _flow: object) -> int:
        """As of `SprayedPaths`."""
        return 0

    def link(self, _frame: Any, ready_ns: int, _sender: int, _to: int) -> OracleLink:
        """The one that a frame takes."""
        every = cast(Sequence[OracleLink], self.links)
        links = (*every[self._turn :], *every[: self._turn])
        self._turn = (self._turn + 1) % len(links)
        return min(links, key=lambda link: link.backlog_bytes(ready_ns))


class OracleSwitch:
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
        self.ports: list[OracleLink | OraclePaths] = []
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

    def route(self, _several: object) -> None:
        """As of `SimulatedSwitch`."""

    def receive(self, frame: Any, sender: int, to: int) -> None:
        """A frame whose last bit is there."""
        if to & NODE_MASK == self.address:
            self._process(frame, sender, to)
            return
        port = self.ports[to & NODE_MASK]
        port.send(frame, len_of(frame) + framing_bytes_of(frame), self._time.now_ns + self._latency_ns, sender, to)

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


def len_of(frame: Any) -> int:
    """In bytes, without what `framing_bytes_of` counts."""
    return frame.size if isinstance(frame, np.ndarray) else len(frame)


class OracleNetwork(SwitchedNetwork):
    """As `SwitchedNetwork`, with all parties, hosts, switches and links in Python."""

    def __init__(self, *args: Any, **how: Any) -> None:
        self._actions: dict[str, dict[int, Action]] = {}  # by host: what its addresses do with a frame
        super().__init__(*args, **how)
        self._spread = OracleSprayedPaths if self._spread is SprayedPaths else OraclePaths

    def _clock(self, trace: bool) -> VirtualClock:  # type: ignore[override]
        return OracleClock(trace=trace)

    def _switch(self, name: str, latency_ns: int) -> OracleSwitch:  # type: ignore[override]
        return OracleSwitch(self._clocks[name], latency_ns)

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> OracleLink:  # type: ignore[override]
        link = (OracleStrictLink if self._strict else OracleLink)(self._clocks[hop[0]], config, _nobody, seed)
        self._lead(link, hop)
        return link

    def _lead(self, link: OracleLink, hop: Hop) -> None:  # type: ignore[override]
        if hop[1] in self.switches:
            link.receive = cast(OracleSwitch, self.switches[hop[1]]).receive

    def _occupy_cpus(self) -> None:
        costs = self.packet_costs
        cpus = OracleCpus(self.time, costs.cpus, costs.wake_ns)
        self._programs: dict[str, OracleProgram] = {}
        for name in (*self.topology.hosts, *self.switches):
            switch = self.switches.get(name)
            sends_on = tuple(link for hop, link in self.links.items() if hop[0] == name)
            program = OracleProgram(cpus, costs.packet_ns if switch is None else costs.switch_packet_ns, sends_on)
            self._programs[name] = program
            if switch is None:
                continue
            program.address = partial(getattr, switch, "address")
            for link in (link for hop, link in self.links.items() if hop[1] == name):
                link.receive = program.entrance(link.receive)  # type: ignore[attr-defined]

    def attach(self, host: str, address: int, receive: Action) -> None:
        """As there; of two at an address, the second one takes the packets of methods with bounded loss."""
        there = self._actions.setdefault(host, {})
        there[address] = _by_magic(_intact(receive), there[address]) if address in there else _intact(receive)
        uplink, downlink = (cast(OracleLink, link) for link in (self.uplink(host), self.downlink(host)))
        uplink.users = len(there)
        downlink.receive = there[address] if len(there) == 1 else _shared(there)
        if self.packet_costs:
            downlink.receive = self._programs[host].entrance(downlink.receive)

    def plane(self, slots: int, elements: int, name: str) -> DataPlane:
        """As there."""
        return DATAPLANES[name](slots, elements)

    def endpoint(self, job: JobConfig, rank: int, wire_rank: int, in_c: bool) -> Any:
        """As there."""
        return endpoint_of(job, rank, wire_rank)

    def host(self, *args: Any) -> EndpointHost:
        """As there."""
        return EndpointHost(*args)

    def member_group(self, *_args: object) -> None:
        """None."""

    def mesh_host(self, *args: Any, **how: Any) -> OracleMeshHost:
        """As there."""
        return OracleMeshHost(*args, **how)

    def keep_values(self) -> None:
        """It always does."""

    def array(self, array: NDArray[Any] | SizeOnlyArray, filled: bool = False) -> NDArray[Any]:
        """As there."""
        return array.zeros() if isinstance(array, SizeOnlyArray) else array


class OracleLosslessNetwork(LosslessNetwork, OracleNetwork):  # type: ignore[misc]
    """As `LosslessNetwork`."""

    def _clock(self, trace: bool) -> VirtualClock:  # type: ignore[override]
        self.charges = Charges()
        return OracleNetwork._clock(self, trace)

    def _pausable(self, config: LinkConfig, seed: str, hop: Hop) -> OraclePausableLink:  # type: ignore[override]
        link = OraclePausableLink(self.time, config, _nobody, seed, self.pfc, self.charges)
        self._lead(link, hop)
        return link

    def _entry(self, link: OraclePausableLink, reverse: OraclePausableLink) -> OracleIngressPort:  # type: ignore[override]
        return OracleIngressPort(link, reverse, self.pfc)


class OracleConfig(SimulationConfig):
    """As `SimulationConfig`, with a network in Python."""

    network_kinds = OracleNetwork, OracleLosslessNetwork


def oracle(config: SimulationConfig) -> OracleConfig:
    """The same on a network in Python."""
    return OracleConfig(**{each.name: getattr(config, each.name) for each in fields(config)})


def _intact(receive: Action) -> Action:
    """Hosts get no frame whose checksum finds damage, but None."""

    def take(frame: Any, sender: int, to: int) -> None:
        receive(frame.received() if frame.__class__ is CorruptedFrame else frame, sender, to)

    return take


def _by_magic(bounded: Action, other: Action) -> Action:
    def take(frame: Any, sender: int, to: int) -> None:
        data = getattr(frame, "data", frame)
        (bounded if bytes(data[:2]) == MAGIC.to_bytes(2, "big") else other)(frame, sender, to)

    return take


def _shared(actions: dict[int, Action]) -> Action:
    """A host with several addresses hands a frame to the receiver of its address."""

    def receive(frame: object, sender: int, to: int) -> None:
        actions[to & NODE_MASK](frame, sender, to)

    return receive


def _nobody(_frame: object, _sender: int, to: int) -> None:
    raise AssertionError(f"a frame for address {to & NODE_MASK}, whose host is not attached")
