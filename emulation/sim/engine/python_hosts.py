"""Hosts and programs of switches in Python on links in C: their bytes travel in C, other frames are objects here."""

import ctypes
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from emulation.sim.engine import engine_library
from emulation.sim.network.simulated_link import NODE_MASK
from emulation.sim.network.virtual_clock import Action
from switchagg.native import headers
from switchagg.native.library import load_holding_gil
from switchagg.wire import Bundle

if TYPE_CHECKING:
    from emulation.sim.engine.packet_clock import PacketClock


class PythonHosts:
    """The Python hosts of one network. `receivers`: what an address does with a frame (frame, sender, to).

    A frame is a packet of method `switch`, an array (1, size) uint8, or the bytes of another one: None at a receiver
    whose checksum finds damage. Any other object is a frame without bits, whose length is `len` and whose `damaged()`
    is the frame that arrives if bits flip.
    """

    def __init__(self, clock: "PacketClock", traced: bool) -> None:
        self.receivers: dict[int, Action] = {}
        self._library = load_holding_gil()
        self._objects: list[Any] = [None]  # by number; those whose number is free are kept until it is taken again
        self._traced = traced
        self._callbacks = self._functions(weakref.ref(clock))  # C's hold on these is no cycle
        self._handle = engine_library.there(self._library.sa_sim_python(clock.handle, *self._callbacks))
        self._state = headers.struct("sim_python").from_address(self._handle)

    def _functions(self, clock: "weakref.ref[PacketClock]") -> tuple[Any, ...]:
        """What C calls: without `self`, and with few steps, since a frame takes longer on its way to Python than on its
        link."""
        receivers, objects = self.receivers, self._objects

        def hand_over(frame: Any, sender: int, to: int) -> None:
            running = clock()
            assert running is not None, "the run of a simulation that is gone"
            running.guarded(receivers.get(to & NODE_MASK, _nobody), frame, sender, to)

        def arrive(number: int, sender: int, to: int) -> None:
            hand_over(objects[number], sender, to)

        def damage(number: int, new: int) -> None:
            _keep(objects, new, objects[number].damaged())

        def arrive_bytes(is_packet: int, data: int | None, length: int, sender: int, to: int) -> None:
            frame: Any = None if data is None else ctypes.string_at(data, length)
            if is_packet and frame is not None:
                frame = np.frombuffer(frame, np.uint8).reshape(1, length)
            hand_over(frame, sender, to)

        return (
            headers.callback("sim_arrive")(arrive),
            headers.callback("sim_damage")(damage),
            headers.callback("sim_arrive_bytes")(arrive_bytes),
        )

    def attach(self, address: int, receive: Action) -> None:
        """A host in Python is at an address from now on, beside one in C, if that is there: each has its frames."""
        if self._library.sa_sim_python_at(self._handle, address):
            raise MemoryError("no memory for hosts")
        self.receivers[address] = receive

    def run_program(self, switch: int, address: int, receive: Action) -> None:
        """Packets for a switch, whose address this is, are a program's in Python."""
        self._library.sa_sim_program(switch, self._handle, address)
        self.receivers[address] = receive

    def end_program(self, switch: int, address: int) -> None:
        """Packets for a switch are its data plane's in C again."""
        self._library.sa_sim_program(switch, None, address)

    def send(
        self,
        link: int,
        frame: Any,
        size_bytes: int,
        ready_ns: int,
        sender: int,
        to: int,
        backlog: int | None = None,
    ) -> bool:
        """As of `SimulatedLink`, on a link in C. backlog: what C has of the sender's frames in its host's queue."""
        kind = frame.__class__
        accepted: int
        if kind is np.ndarray or kind is bytes:
            data = frame if kind is bytes else frame.tobytes()
            way = self._handle, link, kind is np.ndarray
            accepted = self._library.sa_sim_send_bytes(*way, data, len(data), size_bytes, ready_ns, sender, to)
        else:
            _keep(self._objects, self._state.next, frame)
            crc = zlib.crc32(frame.data) if self._traced else 0
            facts = len(frame), size_bytes, frame.flow, crc, backlog
            accepted = self._library.sa_sim_send_object(self._handle, link, *facts, ready_ns, sender, to)
        if accepted < 0:
            raise MemoryError("no memory for a frame")
        return bool(accepted)

    def send_results(self, switch: int, bundle: Bundle, ports: Sequence[int], bits: int) -> None:
        """A program's packets (n, size) leave for these addresses, all of each before the next. bits: of their `to`."""
        count, size = bundle.shape
        to = (ctypes.c_uint32 * len(ports))(*ports)
        if self._library.sa_sim_send_results(switch, bundle.tobytes(), count, size, to, len(ports), bits):
            raise MemoryError("no memory for a frame")


def _keep(objects: list[Any], number: int, frame: Any) -> None:
    if number < len(objects):
        objects[number] = frame
    else:
        assert number == len(objects), "numbers are given in turn"
        objects.append(frame)


def _nobody(_frame: object, _sender: int, to: int) -> None:
    raise AssertionError(f"a frame for address {to & NODE_MASK}, whose host is not attached")
