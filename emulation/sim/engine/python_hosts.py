"""Hosts in Python on links in C: their frames stay here, under the numbers that travel through C."""

import weakref
import zlib
from typing import TYPE_CHECKING, Any

from emulation.sim.engine import engine_library
from emulation.sim.network.simulated_link import NODE_MASK, Bodiless, CorruptedFrame
from emulation.sim.network.virtual_clock import Action
from switchagg.native import headers
from switchagg.native.headers import SIM_PYTHON_BODILESS
from switchagg.native.library import load

if TYPE_CHECKING:
    from emulation.sim.engine.compiled_clock import CompiledClock


class PythonHosts:
    """The Python hosts of one network. `receivers`: what an address does with a frame (frame, sender, to)."""

    def __init__(self, clock: "CompiledClock", traced: bool) -> None:
        self.receivers: dict[int, Action] = {}
        self._library = load()
        self._frames: list[Any] = [None]  # by number; those whose number is free are kept until it is taken again
        self._bodiless: dict[type, int] = {}
        self._traced = traced
        self._clock = weakref.ref(clock)
        hosts = weakref.ref(self)  # C's hold on these functions is no cycle
        self._callbacks = (
            headers.callback("sim_arrive")(lambda number, sender, to: _of(hosts)._arrive(number, sender, to)),
            headers.callback("sim_damage")(
                lambda number, new, burst, first_bit: _of(hosts)._damage(number, new, burst, first_bit)
            ),
        )
        self.handle = engine_library.there(self._library.sa_sim_python(clock.handle, *self._callbacks))
        self._state = headers.struct("sim_python").from_address(self.handle)

    def attach(self, address: int, receive: Action) -> None:
        """A host in Python is at an address from now on."""
        if self._library.sa_sim_python_at(self.handle, address):
            raise MemoryError("no memory for hosts")
        self.receivers[address] = receive

    def send(self, link: int, frame: Any, size_bytes: int, ready_ns: int, sender: int, to: int, ahead: int = 0) -> bool:
        """As of `SimulatedLink`, on a link in C."""
        kind = frame.__class__
        how = self._bodiless.get(kind)
        if how is None:
            how = self._bodiless[kind] = SIM_PYTHON_BODILESS * isinstance(frame, Bodiless)
        self._keep(self._state.next, frame)
        accepted: int = self._library.sa_sim_python_send(
            self.handle,
            link,
            how | ahead,
            len(frame),
            size_bytes,
            getattr(frame, "flow", 0),
            self._content(frame) if self._traced else 0,
            ready_ns,
            sender,
            to,
        )
        if accepted < 0:
            raise MemoryError("no memory for a frame")
        return bool(accepted)

    def _keep(self, number: int, frame: Any) -> None:
        if number < len(self._frames):
            self._frames[number] = frame
        else:
            assert number == len(self._frames), "numbers are given in turn"
            self._frames.append(frame)

    def _content(self, frame: Any) -> int:
        """The frame's part of a trace."""
        return zlib.crc32(getattr(frame, "data", frame))

    def _arrive(self, number: int, sender: int, to: int) -> None:
        clock = self._clock()
        assert clock is not None
        clock.guarded(self.receivers[to & NODE_MASK], self._frames[number], sender, to)

    def _damage(self, number: int, new: int, burst: int, first_bit: int) -> int:
        frame = self._frames[number]
        damaged = CorruptedFrame(frame, burst, first_bit) if burst else frame.damaged()
        self._keep(new, damaged)
        return self._content(damaged) if self._traced else 0


def _of(hosts: "weakref.ref[PythonHosts]") -> PythonHosts:
    library = hosts()
    assert library is not None, "the run of a simulation that is gone"
    return library
