"""A topology's links and switches, each of them once, in virtual time: what jobs and other flows share.

Every sender and receiver has an *address*, a small integer: `to` and `sender` of frames. A host may have several, one
for each job that has a member there, and an aggregating switch has one. Switches forward by address. All of it is in C
(`emulation/sim/native`), where hosts and programs of switches in C and in Python are beside each other.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import SPRAY, Hop, LinkSettings, Topology
from emulation.sim.engine import engine_library
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.engine.member_group import Connections, MemberGroup
from emulation.sim.engine.packet_clock import ALL_BYTES, PacketClock
from emulation.sim.host_costs import NO_PACKET_COSTS, HostCosts, PacketCosts
from emulation.sim.network.aggregation_host import AggregationHost
from emulation.sim.network.endpoint_host import EndpointHost
from emulation.sim.network.mesh_host import MemberHost, MeshHost, PartyGroup
from emulation.sim.network.simulated_link import NODE_MASK, LinkConfig
from emulation.sim.network.virtual_clock import Action
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.spines.paths import HashedPaths, SprayedPaths
from emulation.sim.spines.spine_trees import TreeEndpoints
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.native import NativePlane
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.native import headers, library
from switchagg.native.library import load
from switchagg.native.native_endpoint import NativeEndpoint
from switchagg.partial_endpoint import endpoint_of
from switchagg.wire import Bundle, frame_bytes
from transport.meshes.mesh import Party

NO_ADDRESS = NODE_MASK
RACK_HOSTS_LEAST = 8
"""Hosts of a partition, on average: with fewer, too little happens in it before others must be heard of."""
HOST_QUEUE_BYTES = 1 << 18  # credit of an uplink, two jumbo frames, and acknowledgements


class SimulatedSwitch:
    """Forwards every frame to the port it is addressed to, damaged ones too: checking is the receiver's work. The data
    plane processes frames that are addressed to the switch, a packet at a time, as they arrive; results enter the
    queues of their ports. A data plane that isn't the one in C is a program in Python.

    `ports[address]` is the link on the way there, or those of several ways; latency_ns is the time from a frame's last
    bit in to its place in the queue.
    """

    def __init__(self, clock: PacketClock, latency_ns: int) -> None:
        self.dataplane: DataPlane | None = None
        self.address = NO_ADDRESS
        self.ports: list[SimulatedLink | HashedPaths] = []
        self._hosts = clock.hosts
        self._handle = engine_library.there(load().sa_sim_switch(clock.handle, latency_ns))
        self._state = headers.struct("sim_switch").from_address(self._handle)
        self._routed = 0

    @property
    def handle(self) -> int:
        """The switch in C."""
        return self._handle

    @property
    def drop_checksum(self) -> int:
        """Damaged frames for itself."""
        count: int = self._state.drop_checksum
        return count

    def aggregate(self, dataplane: DataPlane, address: int) -> None:
        """From now on, for all jobs that are admitted there: children's ports are their addresses."""
        self.dataplane, self.address = dataplane, address
        if isinstance(dataplane, NativePlane):
            load().sa_sim_aggregate(self._handle, dataplane.handle, address, frame_bytes(dataplane.elements))
            self._hosts.end_program(self._handle, address)
        else:
            self._hosts.run_program(self._handle, address, self._process)

    def intercept(self, receive: Action) -> None:
        """receive(frame, sender, to) has what comes for the data plane, until that is given to `aggregate` again."""
        self._hosts.run_program(self._handle, self.address, receive)

    def send_results(self, bundle: Bundle, ports: Sequence[int], bits: int) -> None:
        """Packets (n, size) leave for these addresses. bits: of their `to`."""
        self._hosts.send_results(self._handle, bundle, ports, bits)

    def _process(self, frame: Any, sender: int, to: int) -> None:
        assert self.dataplane is not None
        bits = to & ~NODE_MASK  # a result has the class of the frame that caused it (S6), and its ECN bits (G4)
        for output in self.dataplane.process(frame, sender):
            self.send_results(output.bundle, output.ports, bits)

    def route(self, several: Callable[[HashedPaths], int]) -> None:
        """Tell C of the ports that are new. several: where C has the paths of one."""
        for port in self.ports[self._routed :]:
            ends = (None, several(port)) if isinstance(port, HashedPaths) else (port.handle, None)
            if load().sa_sim_route(self._handle, *ends):
                raise MemoryError("no memory for routes")
        self._routed = len(self.ports)


class Forwarding(NamedTuple):
    """How frames go on. strict: links serve priority classes strictly. paths: how switches spread what has several
    ways."""

    strict: bool = False
    paths: str = SPRAY


IN_ORDER = Forwarding()


class SwitchedNetwork:
    """All jobs of a run have one. `time` is the clock of everything in it, `links` go by direction, `switches` by name.

    link: what all links have in common, faults above all; each has rate, delay and queue of its own, and faults drawn
    from seed. tail_at: a host whose links alone have the tail. latency_ns: of every switch, see `SimulatedSwitch`.
    packet_costs: of hosts and switches. trace: as of VirtualClock. An address's frames must find its host attached.
    users, users_at: what jobs are called, by number and by the addresses of their members. tcp_bits: the class of
    flows' TCP, in the `to` of its frames. documents: what a run's results have from those that are on it, beside the
    measured job. traced_bytes: as of PacketClock.

    Arrays without values stay so, if the first one is: then no later one has any.
    """

    traced_bytes = ALL_BYTES

    def __init__(
        self,
        topology: Topology,
        link: LinkConfig,
        *,
        tail_at: str | None = None,
        latency_ns: int = 0,
        seed: int = 1,
        forwarding: Forwarding = IN_ORDER,
        packet_costs: PacketCosts = NO_PACKET_COSTS,
        trace: bool = False,
    ) -> None:
        self.topology = topology
        self.packet_costs = packet_costs
        self._path_sets: dict[int, tuple[int, HashedPaths]] = {}  # by id: number, and keeps it
        self._handles: list[int] = []
        self._choose = headers.callback("sim_choose")(self._chosen)
        self._size_only: bool | None = None
        self._planes: list[NativePlane] = []
        self._endpoints: weakref.WeakSet[NativeEndpoint] = weakref.WeakSet()
        self._room = np.empty(0, np.uint8)
        self._groups: dict[Connections, PartyGroup] = {}
        self.time = self._clock(trace)
        self._clocks = self._partitions()
        self.switches = {name: self._switch(name, latency_ns) for name in topology.switches}
        self.links: dict[Hop, SimulatedLink] = {}
        self._link, self._seed, self._tail_at = link, seed, tail_at
        self._strict = forwarding.strict
        self._hosts = {host: number for number, host in enumerate(topology.hosts)}
        for hop, settings in topology.hops:
            self.links[hop] = self._build_link(hop, settings)
        if packet_costs:
            self._occupy_cpus()
        self.users: dict[int, str] = {}
        self.users_at: dict[int, str] = {}
        self.tcp_bits = 0
        self.documents: list[Callable[[], dict[str, Any]]] = []
        self._attached: dict[str, set[int]] = {}  # addresses, by the name of their host
        self._names: list[str] = []  # of nodes, by address
        self._spread = SprayedPaths if forwarding.paths == SPRAY else HashedPaths
        self._several: dict[tuple[Hop, ...], HashedPaths] = {}

    def _clock(self, trace: bool) -> PacketClock:
        library.require("a simulation packet by packet")
        return PacketClock(trace=trace, traced_bytes=self.traced_bytes)

    def _partitions(self) -> dict[str, Any]:
        """The clock of each node. A partition is a switch and its hosts, or several switches that links without delay
        join, or what is inside a host; without lookahead, or with few hosts in each, all nodes are in one."""
        topology = self.topology
        if self.packet_costs:
            return dict.fromkeys(topology.nodes, self.time)  # programs share CPUs
        ends = {*topology.hosts, *topology.inside}
        above = {name: name for name in topology.nodes}  # another node of its group; the group's name: itself

        def top(name: str) -> str:
            while above[name] != name:
                above[name] = name = above[above[name]]
            return name

        for (sender, to), settings in topology.hops:
            if sender in ends or to in ends or not settings.delay_ns:
                above[top(sender)] = top(to)
        group = {name: top(name) for name in topology.nodes}
        racks = {group[host] for host in topology.hosts}
        names = dict.fromkeys(group.values())
        if not names.keys() - {group[topology.hosts[0]]} or len(topology.hosts) < RACK_HOSTS_LEAST * len(racks):
            return dict.fromkeys(topology.nodes, self.time)
        if len(names) >= headers.SIM_PARTITIONS_MAX:
            return dict.fromkeys(topology.nodes, self.time)
        clocks = {name: self.time.partition() for name in names}
        return {name: clocks[group[name]] for name in topology.nodes}

    @property
    def wakes(self) -> int:
        """How often a packet came to an idle host or program; they have `packet_costs`."""
        return cast(int, load().sa_sim_wakes(self._cpus))

    def _occupy_cpus(self) -> None:
        """Hosts, and switches' programs, take CPU time for packets."""
        costs, C = self.packet_costs, load()
        self._cpus = cpus = engine_library.there(C.sa_sim_cpus(self.time.handle, costs.cpus, costs.wake_ns))
        for name in (*self.topology.hosts, *self.switches):
            switch = self.switches.get(name)
            at, packet_ns = (None, costs.packet_ns) if switch is None else (switch.handle, costs.switch_packet_ns)
            program = engine_library.there(C.sa_sim_program_on(cpus, at, packet_ns))
            for hop, link in self.links.items():
                if name == hop[0] and C.sa_sim_program_sends(program, link.handle):
                    raise MemoryError("no memory for programs")
                if name == hop[1] and C.sa_sim_program_takes(program, link.handle):
                    raise MemoryError("no memory for programs")

    def _switch(self, name: str, latency_ns: int) -> SimulatedSwitch:
        return SimulatedSwitch(self._clocks[name], latency_ns)

    def uplink(self, host: str) -> SimulatedLink:
        """From a host to its switch."""
        return self.links[host, self.topology.neighbours[host][0]]

    def downlink(self, host: str) -> SimulatedLink:
        """From its switch to a host."""
        return self.links[self.topology.neighbours[host][0], host]

    def addresses(self, nodes: Sequence[str]) -> int:
        """The first of new addresses, one after the other, of these nodes: of a host for a member of a job."""
        first = len(self._names)
        for name, switch in self.switches.items():
            for node in nodes:
                somewhere = self.topology.neighbours[name][:1]  # to itself a switch sends nothing
                switch.ports.append(
                    self._port(name, self.topology.next_hops(name, node) if node != name else somewhere)
                )
            switch.route(self._several_in_c)
        self._names += nodes
        return first

    def _several_in_c(self, paths: HashedPaths) -> int:
        if id(paths) not in self._path_sets:
            links = (ctypes.c_void_p * len(paths.links))(*(link.handle for link in paths.links))
            number, choose = len(self._handles), None if isinstance(paths, SprayedPaths) else self._choose
            self._path_sets[id(paths)] = number, paths
            handle = load().sa_sim_paths(
                paths.links[0].network.handle,
                links,
                len(links),
                ctypes.cast(choose, ctypes.c_void_p) if choose else None,
                number,
            )
            self._handles.append(engine_library.there(handle))
        return self._handles[self._path_sets[id(paths)][0]]

    def _chosen(self, number: int, sender: int, to: int, flow: int) -> int:
        paths = next(paths for known, paths in self._path_sets.values() if known == number)
        return paths.place((sender, to, flow))

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
        """receive(frame, sender, to): what an address of a host does with frames of hosts in Python, for which see
        `PythonHosts`. A host in C is at its address already, and takes its own."""
        self.time.hosts.attach(address, receive)
        there = self._attached.setdefault(host, set())
        there.add(address)
        self.uplink(host).share(len(there))

    def aggregator(self, name: str, make: Callable[[], DataPlane]) -> SimulatedSwitch:
        """A switch that aggregates: with a data plane, made for the first job that asks, and an address."""
        switch = self.switches[name]
        if switch.dataplane is None:
            dataplane = make()
            if not isinstance(dataplane, NativePlane):
                self.keep_values()
            switch.aggregate(dataplane, self.addresses([name]))
        return switch

    def plane(self, slots: int, elements: int, name: str) -> DataPlane:
        """A data plane for one of its switches, a name of DATAPLANES."""
        if name != NativePlane.name:
            return DATAPLANES[name](slots, elements)
        plane = NativePlane(slots, elements)
        self._planes.append(plane)
        if self._size_only:
            load().sa_plane_leave_values(plane.handle)
        return plane

    def endpoint(self, job: JobConfig, rank: int, wire_rank: int, in_c: bool) -> Any:
        """An endpoint for one of its hosts. in_c: the compiled core has all that the job needs."""
        if job.partial or not in_c:  # whose values say who is in a sum
            self.keep_values()
        if not in_c:
            return endpoint_of(job, rank, wire_rank)
        endpoint = NativeEndpoint(job, rank, wire_rank)
        self._endpoints.add(endpoint)
        if self._size_only:
            load().sa_endpoint_leave_values(endpoint.handle)
        return endpoint

    def host(self, *args: Any) -> AggregationHost:
        """A worker of method `switch`; arguments: as of AggregationHost."""
        endpoint = args[0].parts[0] if isinstance(args[0], TreeEndpoints) else args[0]
        return (AggregationHost if isinstance(endpoint, NativeEndpoint) else EndpointHost)(*args)

    def member_group(
        self, connections: Connections, first: int, credit_bytes: int | None, costs: HostCosts
    ) -> MemberGroup | None:
        """The group of a job whose members' collectives are in C; None: this network has parties in Python."""
        group = MemberGroup(self.time, connections, first, credit_bytes)
        group.has_costs(costs)
        return group

    def mesh_host(
        self,
        member: int,
        party: Party,
        connections: Connections,
        link: SimulatedLink,
        notice: Callable[[int], None],
        first: int,
        credit_bytes: int | None,
        *,
        job: str,
    ) -> MemberHost:
        """A member whose party is in Python. Members of a job are those whose connections are the same object."""
        group = self._groups.get(connections)
        if group is None:
            group = self._groups[connections] = PartyGroup(self.time, connections, first, credit_bytes, job)
        return MeshHost(group, member, party, link, notice)

    def keep_values(self) -> None:
        """Some of its jobs need the values of their sums: arrays without values are zeros from now on."""
        assert not self._size_only, "a network whose arrays have no values"
        self._size_only = False

    def array(self, array: NDArray[Any] | SizeOnlyArray, filled: bool = False) -> NDArray[Any]:
        """The array that a call sums. filled: the call needs its values. JobError: it has values, and those before it
        had none."""
        size_only = isinstance(array, SizeOnlyArray) and not filled
        if self._size_only is None:
            self._size_only = size_only
            if size_only:
                self._leave_values()
        if not isinstance(array, SizeOnlyArray):
            if self._size_only:
                raise JobError("an array with values, where the first one had none: give it as a SizeOnlyArray, too")
            return array
        if not self._size_only:
            return array.zeros()
        if self._room.nbytes < array.nbytes:
            self._room = np.empty(array.nbytes, np.uint8)  # nobody touches it, so that it takes no memory
        return self._room[: array.nbytes].view(array.dtype)

    def _leave_values(self) -> None:
        load().sa_sim_leave_values(self.time.handle)
        for plane in self._planes:
            load().sa_plane_leave_values(plane.handle)
        for endpoint in self._endpoints:
            load().sa_endpoint_leave_values(endpoint.handle)

    def faults(self) -> dict[str, int]:
        """Fault counters, summed over all links."""
        links = list(self.links.values())
        return {name: sum(link.faults[name] for link in links) for name in links[0].faults}

    def _build_link(self, hop: Hop, settings: LinkSettings) -> SimulatedLink:
        """A direction of a link. A host never overflows its own queue: `HostUplink` waits instead."""
        sender, to = hop
        queue_bytes, drop_bytes, name = settings.queue_bytes, self._link.drop_bytes, f"{sender} to {to}"
        common = self._link
        if sender in self._hosts:
            queue_bytes, drop_bytes, name = max(queue_bytes, HOST_QUEUE_BYTES), None, f"up {self._hosts[sender]}"
        elif to in self._hosts:
            name = f"down {self._hosts[to]}"
        if (sender in self._hosts or to in self._hosts) and {*hop} & {*self.topology.inside}:
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
        link = SimulatedLink(self._clocks[hop[0]], config, seed, self._strict)
        self._lead(link, hop)
        return link

    def _lead(self, link: SimulatedLink, hop: Hop) -> None:
        switch = self.switches.get(hop[1])
        link.lead_to(switch.handle if switch is not None else None)
