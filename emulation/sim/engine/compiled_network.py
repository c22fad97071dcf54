"""A topology's links and switches in C: `SwitchedNetwork`, for hosts in C and in Python beside each other."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.scenario.topologies.topology import Hop
from emulation.sim.engine import engine_library
from emulation.sim.engine.compiled_clock import ALL_BYTES, CompiledClock
from emulation.sim.engine.compiled_host import CompiledHost
from emulation.sim.engine.compiled_links import CompiledLink, CompiledSwitch
from emulation.sim.engine.compiled_mesh import CompiledMeshHost, PartyGroup
from emulation.sim.network.mesh_host import Connections
from emulation.sim.network.simulated_link import LinkConfig, SimulatedLink
from emulation.sim.network.strict_link import StrictLink
from emulation.sim.network.switched_network import SimulatedSwitch, SwitchedNetwork
from emulation.sim.network.virtual_clock import Action
from emulation.sim.size_only import SizeOnlyArray
from emulation.sim.spines.paths import HashedPaths, SprayedPaths
from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.native import headers
from switchagg.native.library import load
from switchagg.native.native_endpoint import NativeEndpoint
from transport.meshes.mesh import Party


class CompiledNetwork(SwitchedNetwork):
    """As `SwitchedNetwork`. Arrays without values stay so, if the first one is: then no later one has any.

    traced_bytes: as of CompiledClock.
    """

    time: CompiledClock
    traced_bytes = ALL_BYTES

    def __init__(self, *args: Any, **how: Any) -> None:
        self._paths: dict[int, tuple[int, HashedPaths]] = {}  # by id: number, and keeps it
        self._handles: list[int] = []
        self._choose = headers.callback("sim_choose")(self._chosen)
        self._size_only: bool | None = None
        self._planes: list[NativePlane] = []
        self._endpoints: weakref.WeakSet[NativeEndpoint] = weakref.WeakSet()
        self._room = np.empty(0, np.uint8)
        self._groups: dict[Connections, PartyGroup] = {}
        super().__init__(*args, **how)

    def _clock(self, trace: bool) -> CompiledClock:
        return CompiledClock(trace=trace, traced_bytes=self.traced_bytes)

    def _switch(self, latency_ns: int) -> SimulatedSwitch:
        return CompiledSwitch(self.time, latency_ns)

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> SimulatedLink:
        link = CompiledLink(self.time, config, seed, self._kind is StrictLink)
        self._lead(link, hop)
        return cast(SimulatedLink, link)

    def _lead(self, link: CompiledLink, hop: Hop) -> None:
        switch = self.switches.get(hop[1])
        link.lead_to(cast(CompiledSwitch, switch).handle if switch is not None else None)

    def addresses(self, nodes: Sequence[str]) -> int:
        first = super().addresses(nodes)
        for switch in self.switches.values():
            cast(CompiledSwitch, switch).route(self._several_in_c)
        return first

    def _several_in_c(self, paths: HashedPaths) -> int:
        if id(paths) not in self._paths:
            links = (ctypes.c_void_p * len(paths.links))(*(cast(CompiledLink, link).handle for link in paths.links))
            number, choose = len(self._handles), None if isinstance(paths, SprayedPaths) else self._choose
            self._paths[id(paths)] = number, paths
            handle = load().sa_sim_paths(
                self.time.handle, links, len(links), ctypes.cast(choose, ctypes.c_void_p) if choose else None, number
            )
            self._handles.append(engine_library.there(handle))
        return self._handles[self._paths[id(paths)][0]]

    def _chosen(self, number: int, sender: int, to: int, flow: int) -> int:
        paths = next(paths for known, paths in self._paths.values() if known == number)
        return paths.place((sender, to, flow))

    def attach(self, host: str, address: int, receive: Action) -> None:
        """receive: of a host in Python; one in C has attached itself to its address already."""
        if not load().sa_sim_attached(self.time.handle, address):
            self.time.hosts.attach(address, receive)
        there = self._hosts.setdefault(host, {})
        there[address] = receive
        cast(CompiledLink, self.uplink(host)).share(len(there))

    def plane(self, slots: int, elements: int, _name: str = "native") -> NativePlane:
        plane = NativePlane(slots, elements)
        self._planes.append(plane)
        if self._size_only:
            load().sa_plane_leave_values(plane.handle)
        return plane

    def endpoint(self, job: JobConfig, rank: int, wire_rank: int | None = None) -> Any:
        endpoint = NativeEndpoint(job, rank, wire_rank)
        self._endpoints.add(endpoint)
        if self._size_only:
            load().sa_endpoint_leave_values(endpoint.handle)
        return endpoint

    def host(self, *args: Any) -> CompiledHost:
        return CompiledHost(*args)

    def mesh_host(
        self,
        member: int,
        party: Party,
        connections: Connections,
        link: SimulatedLink,
        notice: Callable[[int], None],
        *,
        job: str,
        credit_bytes: int | None,
        first: int = 0,
    ) -> CompiledMeshHost:
        """As there. Members of a job are those whose connections are the same object."""
        group = self._groups.get(connections)
        if group is None:
            group = self._groups[connections] = PartyGroup(self.time, connections, first, credit_bytes, job)
        return CompiledMeshHost(group, member, party, link, notice)

    def keep_values(self) -> None:
        """See `SwitchedNetwork`."""
        assert not self._size_only, "a network whose arrays have no values"
        self._size_only = False

    def array(self, array: NDArray[Any] | SizeOnlyArray, filled: bool = False) -> NDArray[Any]:
        """JobError: it has values, and those before it had none."""
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
        self.time.state.size_only = 1
        for plane in self._planes:
            load().sa_plane_leave_values(plane.handle)
        for endpoint in self._endpoints:
            load().sa_endpoint_leave_values(endpoint.handle)
