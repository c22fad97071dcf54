"""Links in C that can be paused, and the ports that pause them: `LosslessNetwork`, for hosts in C."""

import ctypes
from typing import Any, cast

from emulation.scenario.topologies.topology import Hop
from emulation.sim.engine import engine_library
from emulation.sim.engine.compiled_clock import CompiledClock
from emulation.sim.engine.compiled_links import CompiledLink
from emulation.sim.engine.compiled_network import CompiledNetwork
from emulation.sim.lossless.lossless_network import LosslessNetwork
from emulation.sim.lossless.pausing import IngressPort, PausableLink, PfcConfig
from emulation.sim.network.simulated_link import LinkConfig
from switchagg.native import headers
from switchagg.native.library import load


class CompiledPort:
    """As `IngressPort`: counters, read in place. room_bytes: of its buffer, of each class."""

    def __init__(self, link: "CompiledPausableLink", reverse: "CompiledPausableLink", room_bytes: int) -> None:
        self.handle = engine_library.there(load().sa_sim_ingress(link.pausing, reverse.pausing, room_bytes))
        self._state = headers.struct("sim_ingress").from_address(self.handle)
        link.port = self

    def __getattr__(self, name: str) -> Any:
        """A counter of `IngressPort`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._state, name)


class CompiledPausableLink(CompiledLink):
    """As `PausableLink`. pfc: what C knows of the network's pauses."""

    def __init__(self, clock: CompiledClock, config: LinkConfig, seed: str, pfc: int) -> None:
        super().__init__(clock, config, seed, strict=False)
        self.port: CompiledPort | None = None
        pausing = load().sa_sim_pausing(self.handle, pfc, engine_library.random_words(f"{seed} red"))
        self.pausing = engine_library.there(pausing)
        self._pauses = headers.struct("sim_pausing").from_address(self.pausing)

    @property
    def pauses(self) -> int:
        count: int = self._pauses.pauses
        return count

    @property
    def most_bytes(self) -> int:
        count: int = self._pauses.most_bytes
        return count

    @property
    def paused_since_ns(self) -> list[int | None]:
        """A counter of each class, as of `PausableLink`."""
        return [None if since_ns < 0 else since_ns for since_ns in self._pauses.paused_since_ns]

    def paused_ns(self, *kinds: int) -> int:
        """See `PausableLink.paused_ns`."""
        since = [self._pauses.paused_since_ns[kind] for kind in kinds]
        paused_ns: int = self._pauses.paused_ns
        paused_ns += sum(self.network.now_ns - begun_ns for begun_ns in since if begun_ns >= 0)
        return paused_ns

    def waits_for(self, port: CompiledPort, kind: int) -> bool:
        """See `PausableLink.waits_for`."""
        return bool(load().sa_sim_waits_for(self.pausing, port.handle, kind))


class CompiledLosslessNetwork(LosslessNetwork, CompiledNetwork):
    """As `LosslessNetwork`; its watch for deadlocks looks at links in C."""

    def _clock(self, trace: bool) -> CompiledClock:
        clock = CompiledNetwork._clock(self, trace)
        self._pfc = engine_library.there(load().sa_sim_pfc(clock.handle, ctypes.byref(_facts(self.pfc))))
        return clock

    def _pausable(self, config: LinkConfig, seed: str, hop: Hop) -> PausableLink:
        link = CompiledPausableLink(self.time, config, seed, self._pfc)
        self._lead(link, hop)
        return cast(PausableLink, link)

    def _entry(self, link: PausableLink, reverse: PausableLink) -> IngressPort:
        room_bytes = self.pfc.xoff_bytes + self.pfc.headroom(link.config)
        ends = cast(CompiledPausableLink, link), cast(CompiledPausableLink, reverse)
        return cast(IngressPort, CompiledPort(*ends, room_bytes))


def _facts(pfc: PfcConfig) -> Any:
    facts = headers.struct("sim_pfc_facts")(xoff_bytes=pfc.xoff_bytes, xon_bytes=pfc.xon_bytes, strict=pfc.strict)
    facts.red_most_bytes = -1
    facts.classes = sum(1 << kind for kind in pfc.classes)
    if pfc.red is not None:
        facts.red_least_bytes, facts.red_most_bytes = pfc.red.least_bytes, pfc.red.most_bytes
        facts.red_chance = pfc.red.chance
    return facts
