"""Links in C: see `network/simulated_link.py` for what they do."""

import ctypes
from collections.abc import Callable
from typing import Any, cast

from emulation.sim.engine import engine_library
from emulation.sim.engine.engine_library import FAULTS
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.network.simulated_link import LinkConfig, Origin
from switchagg.native import headers
from switchagg.native.library import load, load_holding_gil

_Tail = headers.struct("sim_tail_facts")


class SimulatedLink:
    """A direction between two nodes. strict: whether it serves priority classes strictly, the most urgent first, each
    from a queue of its own. seed makes the faults: the same seed and the same sends give the same faults on every
    machine. Counters of `struct sim_link` are attributes, read in place.
    """

    def __init__(self, clock: PacketClock, config: LinkConfig, seed: str, strict: bool) -> None:
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
        """A counter."""
        if name.startswith("_"):
            raise AttributeError(name)
        value: int = getattr(self._state, name)
        return value

    @property
    def faults(self) -> dict[str, int]:
        return dict(zip(FAULTS, self._state.faults, strict=True))

    def send(self, frame: Any, size_bytes: int, ready_ns: int, sender: int = 0, to: int = 0) -> bool:
        """Queue a frame of size_bytes (framing included) at ready_ns; False if the queue is full and it was dropped.
        frame: as of `PythonHosts`. ready_ns is now or later and never before the ready_ns of the send before."""
        return self.network.hosts.send(self.handle, frame, size_bytes, ready_ns, sender, to)

    def backlog(self, _left: Callable[[], None]) -> int | None:
        """What `send_held` of a link that can be paused needs, so that left() is called when a frame has left it; None:
        this link is never paused, and `time_at_backlog_ns` says when."""
        return None

    def backlog_bytes(self, now_ns: int) -> int:
        """Bytes queued and not yet sent, rounded up."""
        return cast(int, load_holding_gil().sa_sim_backlog_bytes(self.handle, now_ns))

    def backlog_of(self, kind: int) -> int:
        """Bytes of one class queued on a strict link, without the frame on the wire."""
        return cast(int, load_holding_gil().sa_sim_backlog_of(self.handle, kind))

    def time_at_backlog_ns(self, size_bytes: int) -> int:
        """The first instant at which no more than size_bytes are left to send, if nothing is added."""
        return cast(int, load_holding_gil().sa_sim_time_at_backlog_ns(self.handle, size_bytes))

    def count(self, add: Callable[[Origin, int], None]) -> Callable[[], None]:
        """add(origin, bytes on the wire), of frames that are sent from now on, once they are through, and at the latest
        when what is returned is called."""
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

    def cut(self, is_cut: bool) -> None:
        """While it is cut, frames that would arrive are lost."""
        load().sa_sim_cut(self.handle, is_cut)
