"""Links and switches in C: the parts of a compiled network that Python still asks for something."""

import ctypes
from collections.abc import Callable
from typing import Any, cast

from emulation.sim.engine import engine_library
from emulation.sim.engine.compiled_clock import CompiledClock
from emulation.sim.engine.engine_library import FAULTS
from emulation.sim.network.simulated_link import LinkConfig, Origin
from emulation.sim.network.switched_network import SimulatedSwitch
from emulation.sim.spines.paths import HashedPaths
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.native import NativePlane
from switchagg.native import headers
from switchagg.native.library import load
from switchagg.wire import frame_bytes

_Tail = headers.struct("sim_tail_facts")


class CompiledLink:
    """A direction of a link in C, with the attributes of `SimulatedLink`. Counters are read in place."""

    def __init__(self, clock: CompiledClock, config: LinkConfig, seed: str, strict: bool) -> None:
        self.config, self.network, self.strict = config, clock, strict
        words = engine_library.random_words(seed) if config.faulty else None
        tail = _Tail()
        if config.tail is not None:
            late = engine_library.random_words(f"{seed} tail")
            tail = _Tail(
                config.tail.p50_ns,
                config.tail.sigma,
                1 / config.tail.burst_ns,
                ctypes.cast(late, ctypes.c_void_p),
            )
        facts = headers.struct("sim_link_facts")(
            rate_bps=config.rate_bps,
            delay_ns=config.delay_ns,
            queue_bytes=config.queue_bytes,
            ecn_bytes=-1 if config.ecn_bytes is None else config.ecn_bytes,
            drop_bytes=-1 if config.drop_bytes is None else config.drop_bytes,
            loss=config.loss,
            duplicate=config.duplicate,
            reorder=config.reorder,
            corrupt=config.corrupt,
            words=ctypes.cast(words, ctypes.c_void_p) if words else None,
            tail=tail,
            strict=strict,
        )
        self.handle = engine_library.there(load().sa_sim_link(clock.handle, ctypes.byref(facts)))
        self._state = headers.struct("sim_link").from_address(self.handle)

    def __getattr__(self, name: str) -> int:
        """A counter of `SimulatedLink`."""
        if name.startswith("_"):
            raise AttributeError(name)
        value: int = getattr(self._state, name)
        return value

    @property
    def faults(self) -> dict[str, int]:
        return dict(zip(FAULTS, self._state.faults, strict=True))

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """As of `SimulatedLink`, of a host in Python."""
        return self.network.hosts.send(self.handle, frame, size_bytes, ready_ns, sender, to)

    def send_ahead(self, frame: Any, size_bytes: int, ready_ns: int, sender: int, to: int) -> bool:
        """As of `SimulatedLink`, of a host in Python."""
        return self.network.hosts.send(self.handle, frame, size_bytes, ready_ns, sender, to, headers.SIM_PYTHON_AHEAD)

    def backlog_bytes(self, now_ns: int) -> int:
        """As of `SimulatedLink`."""
        return cast(int, load().sa_sim_backlog_bytes(self.handle, now_ns))

    def backlog_of(self, kind: int) -> int:
        """As of `StrictLink`."""
        return cast(int, load().sa_sim_backlog_of(self.handle, kind))

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """As of `SimulatedLink`."""
        return cast(int, load().sa_sim_time_at_backlog_ns(self.handle, size_bytes))

    def count(self, add: Callable[[Origin, int], None]) -> Callable[[], None]:
        """As of `SimulatedLink`; only when it is asked for."""
        watch = engine_library.there(load().sa_sim_watch(self.handle))
        watched = ctypes.POINTER(headers.struct("sim_counted"))()

        def take() -> None:
            for entry in watched[: load().sa_sim_watched(watch, ctypes.byref(watched))]:
                add(Origin(entry.job if entry.job >= 0 else None, entry.sender, entry.flow), entry.bytes)

        return take

    def share(self, users: int) -> None:
        """The host that the link leaves has so many addresses."""
        self._state.users = users

    def lead_to(self, switch: int | None) -> None:
        """Hand frames to a switch, or, None, to the hosts that they are for."""
        load().sa_sim_lead_to(self.handle, switch)


class CompiledSwitch(SimulatedSwitch):
    """As `SimulatedSwitch`; Python's part of it knows where ports lead."""

    def __init__(self, clock: CompiledClock, latency_ns: int) -> None:
        self.handle = engine_library.there(load().sa_sim_switch(clock.handle, latency_ns))
        self._state = headers.struct("sim_switch").from_address(self.handle)
        super().__init__(clock, latency_ns)
        self._routed = 0

    def aggregate(self, dataplane: DataPlane, address: int) -> None:
        assert isinstance(dataplane, NativePlane)
        super().aggregate(dataplane, address)
        room_bytes = frame_bytes(dataplane.elements)
        load().sa_sim_aggregate(self.handle, dataplane.handle, address, room_bytes)

    def route(self, several: Callable[[HashedPaths], int]) -> None:
        """Tell C of the ports that are new. several: where C has the paths of one."""
        for port in self.ports[self._routed :]:
            ends = (None, several(port)) if isinstance(port, HashedPaths) else (cast(CompiledLink, port).handle, None)
            if load().sa_sim_route(self.handle, *ends):
                raise MemoryError("no memory for routes")
        self._routed = len(self.ports)

    @property
    def drop_checksum(self) -> int:
        count: int = self._state.drop_checksum
        return count
