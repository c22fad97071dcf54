"""Priority flow control (IEEE 802.1Qbb): links whose classes can be paused, and the buffers of ports that pause them.

A switch charges each frame to the port that it came in by, until it has left: forwarded, or folded into a sum. Above
`xoff_bytes` of a lossless class the port pauses that class of the link to it, below `xon_bytes` it lets it go on; what
is on its way meanwhile finds room in the port's headroom.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emulation.sim.engine import engine_library
from emulation.sim.engine.links import SimulatedLink
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.network.simulated_link import LinkConfig
from switchagg.native import headers
from switchagg.native.library import load
from switchagg.priority import CLASSES

PAUSE_FRAME_BYTES = 64
LARGEST_FRAME_BYTES = 1518


@dataclass(frozen=True)
class Red:
    """Marking by the length of a queue: none up to least_bytes, all above most_bytes, between them up to `chance`.

    The defaults are those of DCQCN's paper (Zhu 2015).
    """

    least_bytes: int = 5_000
    most_bytes: int = 200_000
    chance: float = 0.01


@dataclass(frozen=True)
class PfcConfig:
    """The flow control of every port. classes: the lossless classes. headroom_bytes, None: what a link to it can still
    bring after a pause, in frames of at most frame_bytes. strict: the most urgent class is served first; else all that
    wait have the same part of a link (enhanced transmission selection, IEEE 802.1Qaz, with equal weights). stuck_ns: a
    port paused for so long, from whose buffer nothing left, is a deadlock.

    ValueError if xon_bytes is above xoff_bytes.
    """

    xoff_bytes: int = 100_000
    xon_bytes: int = 97_000
    headroom_bytes: int | None = None
    classes: frozenset[int] = frozenset(range(CLASSES))
    red: Red | None = None
    stuck_ns: int = 100_000_000
    frame_bytes: int = LARGEST_FRAME_BYTES
    strict: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.xon_bytes <= self.xoff_bytes:
            raise ValueError(f"xon_bytes must be from 0 to xoff_bytes, not {self.xon_bytes}")

    def headroom(self, link: LinkConfig) -> int:
        """There and back, the frame that was too much, one that had begun at either end, and the pause itself."""
        if self.headroom_bytes is not None:
            return self.headroom_bytes
        way_bytes = -(-2 * link.delay_ns * link.rate_bps // 8_000_000_000)
        return way_bytes + 3 * self.frame_bytes + PAUSE_FRAME_BYTES


class IngressPort:
    """Where a link comes in at a switch: counters, read in place. reverse: the other direction, on which pauses travel.
    room_bytes: of its buffer, of each class."""

    def __init__(self, link: "PausableLink", reverse: "PausableLink", room_bytes: int) -> None:
        self.handle = engine_library.there(load().sa_sim_ingress(link.pausing, reverse.pausing, room_bytes))
        self._state = headers.struct("sim_ingress").from_address(self.handle)
        link.port = self

    def __getattr__(self, name: str) -> Any:
        """A counter of `struct sim_ingress`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._state, name)


class PausableLink(SimulatedLink):
    """As `SimulatedLink`, with a queue for each class, which can be paused.

    Frames of a lossless class are never dropped here: the ports they came in by limit them. `port`: where it leads to,
    if that can pause it; None: a host, which takes all. most_bytes: the longest that any class's queue was. pfc: what C
    has of the network's pauses.
    """

    def __init__(self, clock: PacketClock, config: LinkConfig, seed: str, pfc: int) -> None:
        super().__init__(clock, config, seed, strict=False)
        self.port: IngressPort | None = None
        pausing = load().sa_sim_pausing(self.handle, pfc, engine_library.random_words(f"{seed} red"))
        self.pausing = engine_library.there(pausing)
        self._pauses = headers.struct("sim_pausing").from_address(self.pausing)
        self._pfc = pfc

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
        """Since when each class is paused; None: it isn't."""
        return [None if since_ns < 0 else since_ns for since_ns in self._pauses.paused_since_ns]

    def paused_ns(self, *kinds: int) -> int:
        """How long classes have been paused, all pauses that are over and those of these kinds added up."""
        since = [self._pauses.paused_since_ns[kind] for kind in kinds]
        paused_ns: int = self._pauses.paused_ns
        paused_ns += sum(self.network.now_ns - begun_ns for begun_ns in since if begun_ns >= 0)
        return paused_ns

    def waits_for(self, port: IngressPort, kind: int) -> bool:
        """Whether frames of a class that came in by a port wait here."""
        return bool(load().sa_sim_waits_for(self.pausing, port.handle, kind))

    def backlog(self, left: Callable[[], None]) -> int:
        """See `SimulatedLink`."""
        notices = self.network.notices
        notices.append(left)
        return engine_library.there(load().sa_sim_backlog(self._pfc, len(notices) - 1))

    def send_held(self, backlog: int, frame: Any, size_bytes: int, sender: int, to: int) -> bool:
        """Queue a frame without bits now; a frame that is dropped has left at once. backlog: of `backlog`."""
        now_ns = self.network.now_ns
        return self.network.hosts.send(self.handle, frame, size_bytes, now_ns, sender, to, backlog=backlog)


def facts_of(pfc: PfcConfig) -> Any:
    """As `struct sim_pfc_facts`."""
    facts = headers.struct("sim_pfc_facts")(xoff_bytes=pfc.xoff_bytes, xon_bytes=pfc.xon_bytes, strict=pfc.strict)
    facts.red_most_bytes = -1
    facts.classes = sum(1 << kind for kind in pfc.classes)
    if pfc.red is not None:
        facts.red_least_bytes, facts.red_most_bytes = pfc.red.least_bytes, pfc.red.most_bytes
        facts.red_chance = pfc.red.chance
    return facts
