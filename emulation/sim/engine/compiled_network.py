"""A topology's links and switches in C: `SwitchedNetwork`, for hosts in C and in Python beside each other."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from emulation.sim.engine import library
from emulation.sim.engine.compiled_clock import WHOLE, CompiledClock
from emulation.sim.engine.compiled_host import CompiledHost
from emulation.sim.engine.compiled_links import CompiledLink, CompiledSwitch
from emulation.sim.engine.compiled_mesh import CompiledMeshHost, PartyGroup
from emulation.sim.engine.library import CHOOSE
from emulation.sim.hollow import Hollow
from emulation.sim.network.link import Link, LinkConfig
from emulation.sim.network.mesh import Connections
from emulation.sim.network.network import Action
from emulation.sim.network.strict_link import StrictLink
from emulation.sim.network.switched_network import Switch, SwitchedNetwork
from emulation.sim.spines.paths import HashedPaths, SprayedPaths
from emulation.topologies.topology import Hop
from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.native.endpoint import NativeEndpoint
from transport.meshes.mesh import Party


class CompiledNetwork(SwitchedNetwork):
    """As `SwitchedNetwork`. Arrays without values stay so, if the first one is: then no later one has any.

    traced_bytes: as of CompiledClock.
    """

    time: CompiledClock
    traced_bytes = WHOLE

    def __init__(self, *args: Any, **how: Any) -> None:
        self._paths: dict[int, tuple[int, HashedPaths]] = {}  # by id: number, and keeps it
        self._handles: list[int] = []
        self._choose = CHOOSE(self._chosen)
        self._hollow: bool | None = None
        self._planes: list[NativePlane] = []
        self._endpoints: weakref.WeakSet[NativeEndpoint] = weakref.WeakSet()
        self._room = np.empty(0, np.uint8)
        self._groups: dict[Connections, PartyGroup] = {}
        super().__init__(*args, **how)

    def _clock(self, trace: bool) -> CompiledClock:
        return CompiledClock(trace=trace, traced_bytes=self.traced_bytes)

    def _switch(self, latency_ns: int) -> Switch:
        return CompiledSwitch(self.time, latency_ns)

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> Link:
        made = CompiledLink(self.time, config, seed, self._kind is StrictLink)
        self._lead(made, hop)
        return cast(Link, made)

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
            made = library.engine().sa_sim_paths(
                self.time.handle, links, len(links), ctypes.cast(choose, ctypes.c_void_p) if choose else None, number
            )
            self._handles.append(library.there(made))
        return self._handles[self._paths[id(paths)][0]]

    def _chosen(self, number: int, sender: int, to: int, flow: int) -> int:
        paths = next(paths for known, paths in self._paths.values() if known == number)
        return paths.place((sender, to, flow))

    def attach(self, host: str, address: int, receive: Action) -> None:
        """receive: of a host in Python; one in C has attached itself to its address already."""
        if not library.engine().sa_sim_attached(self.time.handle, address):
            self.time.hosts.attach(address, receive)
        there = self._hosts.setdefault(host, {})
        there[address] = receive
        cast(CompiledLink, self.uplink(host)).share(len(there))

    def plane(self, slots: int, elements: int, _name: str = "native") -> NativePlane:
        made = NativePlane(slots, elements)
        self._planes.append(made)
        if self._hollow:
            library.engine().sa_plane_leave_values(made.handle)
        return made

    def endpoint(self, job: JobConfig, rank: int, wire_rank: int | None = None) -> Any:
        made = NativeEndpoint(job, rank, wire_rank)
        self._endpoints.add(made)
        if self._hollow:
            library.engine().sa_endpoint_leave_values(made.handle)
        return made

    def host(self, *args: Any) -> CompiledHost:
        return CompiledHost(*args)

    def mesh_host(
        self,
        member: int,
        party: Party,
        connections: Connections,
        link: Link,
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
        assert not self._hollow, "a network whose arrays have no values"
        self._hollow = False

    def array(self, array: NDArray[Any] | Hollow, filled: bool = False) -> NDArray[Any]:
        """JobError: it has values, and those before it had none."""
        hollow = isinstance(array, Hollow) and not filled
        if self._hollow is None:
            self._hollow = hollow
            if hollow:
                self._leave_values()
        if not isinstance(array, Hollow):
            if self._hollow:
                raise JobError("an array with values, where the first one had none: give it as a Hollow, too")
            return array
        if not self._hollow:
            return array.zeros()
        if self._room.nbytes < array.nbytes:
            self._room = np.empty(array.nbytes, np.uint8)  # nobody touches it, so that it takes no memory
        return self._room[: array.nbytes].view(array.dtype)

    def _leave_values(self) -> None:
        self.time.state.hollow = 1
        for plane in self._planes:
            library.engine().sa_plane_leave_values(plane.handle)
        for endpoint in self._endpoints:
            library.engine().sa_endpoint_leave_values(endpoint.handle)
